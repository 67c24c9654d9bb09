"""What lies beside the weights: Hugging Face's, timm's or our own config, and preprocessing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitlab import imagenet
from vitlab.config import check_fields, from_dict
from vitlab.errors import VitlabError, WeightsError
from vitlab.models.config import ViTConfig
from vitlab.preprocessing import Preprocessing
from vitlab.weights.reading import read_json

GELU = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
TASKS = {"multi_label_classification": "multi-label", "regression": "regression"}
"""Hugging Face's `problem_type`, where it is not one class for each image."""
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers."""
TIMM_IMAGENET = r"(^|_)in1k$"
"""How the tag of weights ends whose head was trained on ImageNet-1k: `augreg_in21k_ft_in1k`."""
TIMM_POOLS = {"token": "cls", "avg": "mean", "map": "map"}


NOTED = (
    "image_size",
    "patch_size",
    "channels",
    "heads",
    "head_width",
    "norm_eps",
    "gelu",
    "pool",
    "resnet_norm_eps",
    "resnet_std_eps",
    "resnet_std_eps_at",
)
"""Fields that one format or another leaves open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What config files say; `config` is a whole one of ours."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    config: ViTConfig | None = None
    preprocessing: Preprocessing | None = None
    labels: tuple[str, ...] | None = None
    dataset: str | None = None
    """Whose classes the head has."""
    name: str | None = None
    """What the table of published checkpoints calls the weights."""
    licence: str | None = None
    task: str = "single-label"

    def __post_init__(self) -> None:
        check_fields(ViTConfig, self.fields)


def read_beside(folder: Path) -> Beside:
    """What `config.json` and `preprocessor_config.json` of the folder say, if they exist."""
    path = folder / "config.json"
    if not path.is_file():
        return Beside(preprocessing=_huggingface_preprocessing(folder))
    content = read_json(path)
    try:
        if "format_version" in content and isinstance(content.get("model"), dict):
            return read_ours(content)
        if "architecture" in content:
            return _timm(content)
        if content.get("model_type") == "vit":
            return _huggingface(content, folder)
    except VitlabError as error:
        raise WeightsError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{path}: not a config that can be read ({error})") from error
    return Beside(preprocessing=_huggingface_preprocessing(folder))


def read_ours(content: Mapping[str, Any]) -> Beside:
    """Our config as bundles and the metadata of our files hold it."""
    kind = content.get("architecture", "vit")
    if kind != "vit":
        raise WeightsError(f"a {kind}, which is no Vision Transformer; valid here: one of these")
    return read_note(content, Beside(config=from_dict(ViTConfig, content["model"])))


def read_note(content: Mapping[str, Any], beside: Beside) -> Beside:
    """What is beside the file, with what the file itself says about its use and origin."""
    preparation, labels = content.get("preprocessing"), content.get("labels")
    noted = {name: _size(value) for name, value in (content.get("fields") or {}).items()}
    return replace(
        beside,
        fields=noted or beside.fields,
        preprocessing=Preprocessing.from_json(preparation) if preparation else beside.preprocessing,
        labels=tuple(map(str, labels)) if labels else beside.labels,
        task=content.get("task") or beside.task,
        name=content.get("name"),
        licence=content.get("licence") or (content.get("provenance") or {}).get("licence"),
    )


def _huggingface(content: Mapping[str, Any], folder: Path) -> Beside:
    act = content.get("hidden_act", "gelu")
    if act not in GELU:
        raise WeightsError(f"hidden_act {act!r} is not supported; valid: {', '.join(GELU)}")
    names = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "mlp_width",
        "layer_norm_eps": "norm_eps",
        "image_size": "image_size",
        "patch_size": "patch_size",
        "num_channels": "channels",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    found = {ours: _size(content[key]) for key, ours in names.items() if key in content}
    return Beside(
        fields=found | {"gelu": GELU[act]},
        preprocessing=_huggingface_preprocessing(folder),
        labels=_labels(content.get("id2label")),
        task=TASKS.get(content.get("problem_type") or "", "single-label"),
    )


def _size(value: Any) -> Any:
    if isinstance(value, list):
        height, width = value
        return height if height == width else (height, width)
    return value


def _labels(id2label: Any) -> tuple[str, ...] | None:
    """Class names in order; the numbers that stand in for missing ones are none."""
    if not isinstance(id2label, dict) or not id2label:
        return None
    labels = tuple(str(id2label[key]) for key in sorted(id2label, key=int))
    return None if all(label.startswith("LABEL_") for label in labels) else labels


def _huggingface_preprocessing(folder: Path) -> Preprocessing | None:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return None
    content = read_json(path)
    try:
        return _from_processor(content)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{path}: not a preprocessing that can be read ({error})") from error


def _from_processor(content: Mapping[str, Any]) -> Preprocessing:
    size, keep_aspect = _processor_size(content.get("size", 224))
    crop = 1.0
    if content.get("do_center_crop") and content.get("crop_size"):
        cropped, _ = _processor_size(content["crop_size"])
        crop, size = min(cropped[0] / size[0], 1.0), cropped
    normalised = content.get("do_normalize", True)
    mean = content.get("image_mean") or (0.5, 0.5, 0.5)
    std = content.get("image_std") or (0.5, 0.5, 0.5)
    return Preprocessing.from_json(
        {
            "size": size,
            "crop": crop,
            "interpolation": RESAMPLE[content.get("resample", 2)],
            "mean": mean if normalised else [0.0] * len(mean),
            "std": std if normalised else [1.0] * len(std),
            "keep_aspect": keep_aspect,
        }
    )


def _processor_size(size: Any) -> tuple[tuple[int, int], bool]:
    """Height and width, and whether the image keeps its proportions."""
    if isinstance(size, dict) and "shortest_edge" in size:
        return (int(size["shortest_edge"]),) * 2, True
    if isinstance(size, dict):
        return (int(size["height"]), int(size["width"])), False
    height, width = (size, size) if isinstance(size, int) else size
    return (int(height), int(width)), False


def _timm(content: Mapping[str, Any]) -> Beside:
    """timm's hub config: `pretrained_cfg` beside the name of the architecture."""
    given = {**content, **content.get("pretrained_cfg", {})}
    arguments = content.get("model_args", {})
    found: dict[str, Any] = {}
    pool = arguments.get("global_pool", content.get("global_pool"))
    if pool in TIMM_POOLS:
        found["pool"] = TIMM_POOLS[pool]
    if "num_heads" in arguments:
        found["heads"] = int(arguments["num_heads"])
    if "num_features" in content:
        found["width"] = int(content["num_features"])
    size = arguments.get("img_size", given.get("input_size", (3, 224, 224))[1:])
    found["image_size"] = _size(list(size) if not isinstance(size, int) else size)
    labels = given.get("label_names")
    return Beside(
        fields=found,
        preprocessing=_timm_preprocessing(given, size),
        labels=tuple(map(str, labels)) if labels else None,
        dataset=imagenet.NAME if re.search(TIMM_IMAGENET, str(given.get("tag"))) else None,
    )


def _timm_preprocessing(given: Mapping[str, Any], size: Any) -> Preprocessing | None:
    if "mean" not in given or "std" not in given:
        return None
    return Preprocessing.from_json(
        {
            "size": (size, size) if isinstance(size, int) else tuple(size),
            "crop": given.get("crop_pct") or 0.875,
            "interpolation": given.get("interpolation") or "bicubic",
            "mean": tuple(given["mean"]),
            "std": tuple(given["std"]),
            "keep_aspect": given.get("crop_mode", "center") != "squash",
        }
    )
