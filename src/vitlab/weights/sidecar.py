"""Files beside the weights: Hugging Face's, timm's or our own config, and preprocessing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitlab.config import check_fields, from_dict
from vitlab.errors import VitlabError, WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import Size, ViTConfig, pair
from vitlab.objectives.objective import objective_of
from vitlab.registry import OBJECTIVES
from vitlab.weights.formats.huggingface_config import family, huggingface_fields, is_huggingface
from vitlab.weights.formats.open_clip_config import open_clip_fields
from vitlab.weights.formats.timm_config import is_timm, timm_fields
from vitlab.weights.labels import IMAGENET
from vitlab.weights.reading import flag, fraction, naming, one_of, read_json, section, size
from vitlab.weights.source import WeightSource

RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers."""
PROCESSOR_FLAGS = ("do_rescale", "do_normalize", "do_resize", "do_center_crop", "do_convert_rgb")
UNSUPPORTED = ("offset", "do_pad", "do_flip_channel_order", "do_thumbnail", "crop_pct")
"""Steps of image processors that `Preprocessing` cannot express."""
OPEN_CLIP = "open_clip_config.json"
RESIZE_MODES = ("shortest", "squash")
CROP_MODES = (None, "center", "squash")
TIMM_IMAGENET = r"(^|_)in1k$"
"""Suffix of the tag of weights with a head trained on ImageNet-1k: `augreg_in21k_ft_in1k`."""

NOTED = (
    "image_size",
    "patch_size",
    "channels",
    "heads",
    "head_width",
    "norm_eps",
    "gelu",
    "norm",
    "norm_at",
    "pool",
    "pool_heads",
    "position",
    "rope",
    "rope_form",
    "rope_theta",
    "position_grid",
    "resnet_norm_eps",
    "resnet_std_eps",
    "resnet_std_eps_at",
)
"""Fields that some format does not contain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """Content of config files; `config` is a complete one of ours."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    architecture: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the architecture that a config file names, used if it states nothing else."""
    config: ViTConfig | None = None
    preprocessing: Preprocessing | None = None
    labels: tuple[str, ...] | None = None
    dataset: str | None = None
    """Dataset of the head's classes."""
    name: str | None = None
    """Name of the weights in the table of published checkpoints."""
    licence: str | None = None
    task: str = "single-label"
    notes: tuple[str, ...] = ()
    """Assumptions in reading the config files."""

    def __post_init__(self) -> None:
        check_fields(ViTConfig, self.fields)


def read_sidecar(folder: Path, *, trust: bool = False) -> Sidecar:
    """Content of `config.json` and `preprocessor_config.json` of the folder, if they exist.

    `trust` accepts the name of an unknown architecture.
    """
    path = folder / "config.json"
    if not path.is_file():
        return _open_clip(folder, trust=trust)
    content = read_json(path)
    try:
        if "format_version" in content and isinstance(content.get("model"), dict):
            return read_ours(content)
        if is_timm(content):
            return _timm(content, trust=trust)
        if is_huggingface(content):
            return _huggingface(content, folder, trust=trust)
    except VitlabError as error:
        raise WeightsError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{path}: not a config that can be read ({error})") from error
    note = "nothing from config.json, which is neither timm's nor Hugging Face's"
    return Sidecar(preprocessing=_huggingface_preprocessing(folder), notes=(note,))


def read_ours(content: Mapping[str, Any]) -> Sidecar:
    """Our config, as in bundles and the metadata of our files."""
    kind = content.get("architecture", "vit")
    if kind != "vit":
        raise WeightsError(f"architecture {kind!r} is not supported; valid: vit")
    return read_note(content, Sidecar(config=from_dict(ViTConfig, content["model"])))


def read_note(content: Mapping[str, Any], beside: Sidecar) -> Sidecar:
    """Content beside the file, with the file's own notes on its use and origin."""
    preparation, labels = content.get("preprocessing"), content.get("labels")
    noted = {name: _size(value) for name, value in (content.get("fields") or {}).items()}
    if noted.get("position_grid") is not None:  # a grid stays a pair where a size becomes a number
        noted["position_grid"] = pair(noted["position_grid"])
    return replace(
        beside,
        fields=noted or beside.fields,
        architecture={} if noted else beside.architecture,
        notes=() if noted else beside.notes,
        preprocessing=Preprocessing.from_json(preparation) if preparation else beside.preprocessing,
        labels=tuple(map(str, labels)) if labels else beside.labels,
        task=content.get("task") or beside.task,
        name=content.get("name"),
        licence=content.get("licence") or (content.get("provenance") or {}).get("licence"),
    )


def _open_clip(folder: Path, *, trust: bool) -> Sidecar:
    """Content of OpenCLIP's config; that of transformers' image processor comes first."""
    path, processor = folder / OPEN_CLIP, _huggingface_preprocessing(folder)
    if not path.is_file():
        return Sidecar(preprocessing=processor)
    content = read_json(path)
    with naming(path):
        fields, usual = open_clip_fields(content, trust=trust)
        own = _open_clip_preprocessing(section(content, "preprocess_cfg"), {**usual, **fields})
    return Sidecar(fields=fields, architecture=usual, preprocessing=processor or own)


def _open_clip_preprocessing(
    given: Mapping[str, Any], fields: Mapping[str, Any]
) -> Preprocessing | None:
    """Preprocessing of OpenCLIP: `shortest` crops, `squash` does not keep the proportions."""
    if "mean" not in given or "std" not in given:
        return None
    mode = one_of("resize_mode", given.get("resize_mode", "shortest"), RESIZE_MODES)
    words = ("bicubic", "bilinear", "random")  # random crops' own word; it evaluates with bicubic
    word = one_of("interpolation", given.get("interpolation", "bicubic"), words)
    return Preprocessing.from_json(
        {
            "size": pair(size("size", given.get("size") or fields.get("image_size", 224))),
            "crop": 1.0,
            "interpolation": "bicubic" if word == "random" else word,
            "mean": given["mean"],
            "std": given["std"],
            "keep_aspect": mode == "shortest",
        }
    )


def _huggingface(content: Mapping[str, Any], folder: Path, *, trust: bool) -> Sidecar:
    fields, notes = huggingface_fields(content, trust=trust)
    return Sidecar(
        fields=fields,
        preprocessing=_huggingface_preprocessing(folder),
        labels=_labels(content.get("id2label"), content.get("label2id")),
        task=_task(content.get("problem_type")),
        notes=tuple(notes),
    )


def _task(problem_type: object) -> str:
    """Objective of Hugging Face's `problem_type`; without one, one class for each image."""
    known: dict[str | None, str] = {None: "single-label"}
    known |= {objective_of(name).problem_type or name: name for name in OBJECTIVES}
    return known[one_of("problem_type", problem_type, known)]


def _size(value: Any) -> Any:
    if isinstance(value, list):
        height, width = value
        return height if height == width else (height, width)
    return value


def _labels(id2label: Any, label2id: Any = None) -> tuple[str, ...] | None:
    """Class names in order; numbers that replace missing names do not count."""
    if not id2label:
        return None
    if not isinstance(id2label, dict) or {*id2label} != {*map(str, range(len(id2label)))}:
        raise WeightsError("id2label: valid: an object with a name for each of 0, 1, 2, ...")
    labels = tuple(str(id2label[str(number)]) for number in range(len(id2label)))
    if all(label.startswith("LABEL_") for label in labels):
        return None
    for name, number in (label2id or {}).items():
        if id2label.get(str(number)) != name:
            raise WeightsError(f"label2id says {name!r} is {number}, which id2label contradicts")
    return labels


def preprocessing_in(content: Mapping[str, Any]) -> Preprocessing | None:
    """Preprocessing in a JSON file of a bundle, of timm or of transformers; None if there is none.

    An object with the fields of `Preprocessing` is one, too.
    """
    inside = content.get("preprocessing")
    if isinstance(inside, Mapping):
        return Preprocessing.from_json(inside)
    if {"size", "mean", "std"} <= content.keys():
        return Preprocessing.from_json(content)
    if content.keys() & {"image_mean", "image_processor_type", "feature_extractor_type"}:
        return _from_processor(content)
    given = {**content, **(content.get("pretrained_cfg") or {})}
    sides = size("input_size", given["input_size"][1:]) if "input_size" in given else 224
    return _timm_preprocessing(given, sides)


def _huggingface_preprocessing(folder: Path) -> Preprocessing | None:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return None
    content = read_json(path)
    try:
        return _from_processor(content)
    except VitlabError as error:
        raise WeightsError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{path}: not a preprocessing that can be read ({error})") from error


def _from_processor(content: Mapping[str, Any]) -> Preprocessing:
    given = {
        key: flag(key, content[key]) for key in PROCESSOR_FLAGS if content.get(key) is not None
    }
    for key in UNSUPPORTED:
        one_of(key, content.get(key), (None, False))
    size, keep_aspect = _processor_size(content.get("size", 224))
    crop = 1.0
    if given.get("do_center_crop") and content.get("crop_size"):
        cropped, _ = _processor_size(content["crop_size"])
        crop, size = min(cropped[0] / size[0], 1.0), cropped
    mean = content.get("image_mean") or (0.5, 0.5, 0.5)
    std = content.get("image_std") or (0.5, 0.5, 0.5)
    if not given.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    white = _white(content) if given.get("do_rescale", True) else 255.0
    return Preprocessing.from_json(
        {
            "size": size,
            "crop": crop,
            "interpolation": RESAMPLE[content.get("resample", 2)],
            "mean": [value / white for value in mean] if white != 1.0 else mean,
            "std": [value / white for value in std] if white != 1.0 else std,
            "keep_aspect": keep_aspect,
        }
    )


def _white(content: Mapping[str, Any]) -> float:
    """Value of the brightest of 8 bits before normalisation; 1 for the usual 1/255."""
    factor = content.get("rescale_factor")
    white = 1.0 if factor is None else 255 * fraction("rescale_factor", factor)
    if not white:
        raise WeightsError("rescale_factor 0; valid: a positive number, usually 1/255")
    return 1.0 if abs(white - 1.0) < 1e-3 else white


def _processor_size(size: Any) -> tuple[tuple[int, int], bool]:
    """Height and width, and whether the image keeps its proportions."""
    if isinstance(size, dict) and "shortest_edge" in size:
        return (int(size["shortest_edge"]),) * 2, True
    if isinstance(size, dict):
        return (int(size["height"]), int(size["width"])), False
    height, width = (size, size) if isinstance(size, int) else size
    return (int(height), int(width)), False


def _timm(content: Mapping[str, Any], *, trust: bool) -> Sidecar:
    """timm's hub config: `pretrained_cfg` beside the name of the architecture."""
    fields, usual, notes = timm_fields(content, trust=trust)
    given = {**content, **(content.get("pretrained_cfg") or {})}
    if "image_size" not in fields and "input_size" in given:
        fields["image_size"] = usual["image_size"] = size("input_size", given["input_size"][1:])
    labels = given.get("label_names")
    if isinstance(labels, dict):
        labels = _labels(labels)
    elif labels is not None and not isinstance(labels, list):
        raise WeightsError(f"label_names {str(labels)[:60]!r}; valid: a list of names")
    return Sidecar(
        fields=fields,
        preprocessing=_timm_preprocessing(given, (usual or fields).get("image_size", 224)),
        labels=tuple(map(str, labels)) if labels else None,
        dataset=IMAGENET if re.search(TIMM_IMAGENET, str(given.get("tag"))) else None,
        architecture=usual,
        notes=tuple(notes),
    )


def _timm_preprocessing(given: Mapping[str, Any], sides: Size) -> Preprocessing | None:
    if "mean" not in given or "std" not in given:
        return None
    return Preprocessing.from_json(
        {
            "size": pair(sides),
            "crop": given.get("crop_pct") or 0.875,
            "interpolation": given.get("interpolation") or "bicubic",
            "mean": tuple(given["mean"]),
            "std": tuple(given["std"]),
            "keep_aspect": one_of("crop_mode", given.get("crop_mode"), CROP_MODES) != "squash",
        }
    )


# Config files of Hugging Face transformers that correspond to our config.

HIDDEN_ACT = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}


CLASSES_OF = {"vit": "ViT", "deit": "DeiT", "beit": "Beit", "ijepa": "IJepa"}
"""Beginning of the names of transformers' classes, by model type."""


def huggingface_config(config: ViTConfig, source: WeightSource | None) -> dict[str, object]:
    """`config.json` of a ViTForImageClassification, of a ViTModel without a head, or of a relative
    with the same encoder."""
    kind = family(config)
    task = "ForImageClassification" if config.classes else "Model"
    teacher = "WithTeacher" if config.pool == "cls_dist" else ""
    content: dict[str, object] = {
        "architectures": [CLASSES_OF[kind] + task + teacher],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": HIDDEN_ACT[config.gelu],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": _hub_size(config.image_size),
        "patch_size": _hub_size(config.patch_size),
        "num_channels": config.channels,
    }
    if kind == "beit":
        content |= {
            "use_absolute_position_embeddings": config.position == "learned1d",
            "use_relative_position_bias": config.relative_table == "blocks",
            "use_shared_relative_position_bias": config.relative_table == "shared",
            "use_mean_pooling": config.norm_at == "pooled",
            "layer_scale_init_value": config.layer_scale or 0.0,
        }
    else:
        content["qkv_bias"] = config.qkv_bias
    if config.head == "mlp":
        content["pooler_output_size"] = config.representation
    if config.classes:
        labels = source.labels if source is not None else None
        names = labels or tuple(f"LABEL_{i}" for i in range(config.classes))
        content["id2label"] = {str(i): name for i, name in enumerate(names)}
        content["label2id"] = {name: i for i, name in enumerate(names)}
        task = source.task if source is not None else "single-label"
        if task != "single-label":  # Hugging Face's default
            content["problem_type"] = objective_of(task).problem_type
    return content


def _hub_size(size: Size) -> int | list[int]:
    return size if isinstance(size, int) else list(size)


def huggingface_processor(preprocessing: Preprocessing) -> dict[str, object]:
    """`preprocessor_config.json` of an equivalent processor, for any version of transformers."""
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
    """Processor: ViT's does not crop in older versions; CLIP's crops and keeps proportions."""
    height, width = preprocessing.size
    if preprocessing.keep_aspect and height != width:
        raise WeightsError(
            f"format 'huggingface' cannot express preprocessing that keeps proportions for "
            f"{width} x {height} pixels; valid: square images, or keep_aspect=False"
        )
    if preprocessing.keep_aspect:
        return "CLIPImageProcessor"
    return "ViTImageProcessor" if preprocessing.crop == 1.0 else "DeiTImageProcessor"
