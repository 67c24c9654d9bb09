"""The config files of Hugging Face transformers that say what our config says."""

from vitlab.errors import WeightsError
from vitlab.models.config import Size, ViTConfig
from vitlab.preprocessing import Preprocessing
from vitlab.weights.beside import RESAMPLE, TASKS
from vitlab.weights.source import WeightSource


def huggingface_config(config: ViTConfig, source: WeightSource | None) -> dict[str, object]:
    """`config.json` of a ViTForImageClassification, or of a ViTModel when there is no head."""
    content: dict[str, object] = {
        "architectures": ["ViTForImageClassification" if config.classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": _size(config.image_size),
        "patch_size": _size(config.patch_size),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
    }
    if config.head == "mlp":
        content["pooler_output_size"] = config.representation
    if config.classes:
        labels = source.labels if source is not None else None
        names = labels or tuple(f"LABEL_{i}" for i in range(config.classes))
        content["id2label"] = {str(i): name for i, name in enumerate(names)}
        content["label2id"] = {name: i for i, name in enumerate(names)}
        task = source.task if source is not None else "single-label"
        problem = next(theirs for theirs, ours in TASKS.items() if ours == task)
        if problem is not None:
            content["problem_type"] = problem
    return content


def _size(size: Size) -> int | list[int]:
    return size if isinstance(size, int) else list(size)


def huggingface_processor(preprocessing: Preprocessing) -> dict[str, object]:
    """`preprocessor_config.json` of a processor that does it, in any version of transformers."""
    height, width = preprocessing.size
    resample = {name: number for number, name in RESAMPLE.items()}
    content: dict[str, object] = {
        "image_processor_type": _processor(preprocessing),
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": resample[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    resized = [int(side / preprocessing.crop + 1e-6) for side in (height, width)]
    if preprocessing.keep_aspect:
        content["size"] = {"shortest_edge": min(resized)}
    else:
        content["size"] = {"height": resized[0], "width": resized[1]}
    if preprocessing.keep_aspect or preprocessing.crop < 1.0:
        content["do_center_crop"] = True
        content["crop_size"] = {"height": height, "width": width}
    return content


def _processor(preprocessing: Preprocessing) -> str:
    """ViT's own does not crop in older versions; CLIP's crops what kept its proportions."""
    height, width = preprocessing.size
    if preprocessing.keep_aspect and height != width:
        raise WeightsError(
            f"format 'huggingface' cannot express preprocessing that keeps proportions for "
            f"{height} x {width} pixels; valid: square images, or keep_aspect=False"
        )
    if preprocessing.keep_aspect:
        return "CLIPImageProcessor"
    return "ViTImageProcessor" if preprocessing.crop == 1.0 else "DeiTImageProcessor"
