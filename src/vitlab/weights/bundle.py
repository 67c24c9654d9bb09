"""Bundles: a folder with `model.safetensors` and `config.json`, complete for prediction.

Torch is imported only to save and to load a model: an exported model runs without it.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import DataError, VitlabError, WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import check_file, file_digest, replacing, write_json
from vitlab.models.config import ViTConfig
from vitlab.models.variants import ModelConfig, ResNetConfig, TutorialCNNConfig, create_model
from vitlab.registry import OBJECTIVES
from vitlab.weights.reading import read_json
from vitlab.weights.source import WeightSource, stored_preprocessing

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitlab.weights.container import TensorFile

FORMAT_VERSION = 1
CONFIG, WEIGHTS, ONNX = "config.json", "model.safetensors", "model.onnx"
FILES = "files"
"""Key of `config.json`: size and SHA-256 of the other files; absent in older bundles."""

CHECKED = ("model", "preprocessing", "task")
"""Keys of `config.json` that must equal those in the metadata of the other files; labels may be
renamed.
"""


def is_bundle(folder: Path) -> bool:
    """True if a folder holds a bundle, by the content of its `config.json`."""
    path = folder / CONFIG
    return path.is_file() and "format_version" in read_json(path)


def find_bundle(path: Path) -> Path:
    """Bundle of a run, or the path itself."""
    return path / "bundle" if (path / "bundle").is_dir() else path


def bundle_files(folder: Path) -> tuple[Path, ...]:
    """Files of a bundle, without other files beside them."""
    files = (folder / name for name in (CONFIG, WEIGHTS, ONNX))
    return tuple(file for file in files if file.is_file())


def read_bundle_config(folder: Path) -> dict[str, Any]:
    """Content of a bundle's `config.json`."""
    content: dict[str, Any] = read_json(folder / CONFIG)
    if content.get("format_version") != FORMAT_VERSION:
        raise WeightsError(
            f"{folder / CONFIG}: format_version {content.get('format_version')!r}; "
            f"valid: {FORMAT_VERSION}"
        )
    return checked_content(content, str(folder / CONFIG))


def checked_content(content: Any, name: str) -> dict[str, Any]:
    """Content of `config.json`, with every value of the right type and defaults filled in."""
    if not isinstance(content, dict):
        raise WeightsError(f"{name}: found {_shown(content)}; valid: an object")
    found: dict[str, Any] = {**content}
    for key, (valid, is_valid, default) in CONTENT.items():
        if found.get(key) is None:
            found[key] = default
        elif not is_valid(found[key]):
            raise WeightsError(f"{name}: {key} is {_shown(found[key])}; valid: {valid}")
    if not isinstance(found.get("model"), dict):
        raise WeightsError(f"{name}: no model in it; valid: what `vitlab train` writes")
    classes = found["model"].get("classes")
    if found["labels"] is not None and isinstance(classes, int) and classes != len(found["labels"]):
        raise WeightsError(f"{name}: {len(found['labels'])} labels for {classes} classes")
    return found


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_files(value: Any) -> bool:
    return _is_mapping(value) and all(
        _is_mapping(file)
        and type(file.get("bytes")) is int
        and isinstance(file.get("sha256"), str)
        and re.fullmatch("[0-9a-f]{64}", file["sha256"])
        for file in value.values()
    )


CONTENT: dict[str, tuple[str, Callable[[Any], object], Any]] = {
    "architecture": ("the name of an architecture", lambda value: isinstance(value, str), "vit"),
    "preprocessing": ("an object", _is_mapping, None),
    "labels": ("a list of names", _is_names, None),
    "task": (", ".join(OBJECTIVES), lambda value: value in OBJECTIVES, None),
    "metrics": ("an object", _is_mapping, {}),
    "provenance": ("an object", _is_mapping, {}),
    FILES: ("an object of file names, each with bytes and sha256", _is_files, {}),
}
"""Keys of `config.json`: their valid values as text, a check, and a default."""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def described_file(path: Path) -> dict[str, Any]:
    """Size and digest of a file, as `config.json` holds them."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path, "sha256")}


def record_file(folder: Path, name: str) -> None:
    """Store size and digest of a file that was written into a bundle, if it has digests."""
    content: dict[str, Any] = read_json(folder / CONFIG)
    if not content.get(FILES):  # an older bundle
        return
    files = {**content[FILES], name: described_file(folder / name)}
    write_json(folder / CONFIG, content | {FILES: files})


def check_bundle_file(
    folder: Path, name: str, content: Mapping[str, Any], *, by_size: bool = False
) -> str | None:
    """Digest of a file of a bundle; raises WeightsError if size or content changed since creation.

    With `by_size` the content is not read. None: the bundle is an older one without digests.
    """
    if not content[FILES]:
        return None
    known = content[FILES].get(name)
    if known is None:
        raise WeightsError(
            f"{folder / CONFIG}: no digest of {name}; valid: digests of all files, or of none "
            f"(an older bundle)"
        )
    checksum = None if by_size else f"sha256:{known['sha256']}"
    try:
        check_file(folder / name, size=known["bytes"], checksum=checksum)
    except DataError as error:
        raise WeightsError(
            f"{folder}: {error}, which {CONFIG} says: the file was damaged or replaced"
        ) from error
    except OSError as error:
        raise WeightsError(f"{folder / name}: cannot be read ({error.strerror})") from error
    return str(known["sha256"])


def verify_bundle(folder: Path) -> tuple[str, ...]:
    """Compare every file of a bundle with its digest; return the names of those that have one."""
    content = read_bundle_config(folder)
    names = [WEIGHTS, *([ONNX] if (folder / ONNX).is_file() else [])]
    return tuple(name for name in names if check_bundle_file(folder, name, content))


def check_copy(
    copy: Mapping[str, Any], content: Mapping[str, Any], keys: Iterable[str], name: str
) -> None:
    """Raise if `config.json` differs in these keys from its copy in the metadata of a file."""
    for key in keys:
        if None not in (copy.get(key), content[key]) and copy[key] != content[key]:
            raise WeightsError(
                f"{name}: {key} differs from the copy in {WEIGHTS}: {CONFIG} was changed"
            )


# The model of a bundle: saved, loaded and compared.

ARCHITECTURES: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "resnet": ResNetConfig,
    "cnn-tutorial": TutorialCNNConfig,
}


def save_bundle(
    folder: str | os.PathLike[str],
    model: "nn.Module",
    *,
    preprocessing: Preprocessing | None,
    labels: Sequence[str],
    metrics: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    task: str = "single-label",
    targets: Mapping[str, Any] | None = None,
) -> None:
    """Write the model and its metadata; `config.json` is written last and makes it a bundle.

    `provenance` is any JSON value; of its keys, the model card uses `model`, `recipe`, `data`,
    `seed`, `command`, `commit`, `vitlab`, `weights` (`ema` or `raw`), `licence`, and the cost of
    training: `steps`, `images_seen`, `pflops` (10^15 FLOPs) and `minutes`.
    """
    from vitlab.weights.container import CONFIG_KEY, write_safetensors

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, ONNX):  # an exported model of other weights must not stay
        (folder / name).unlink(missing_ok=True)
    content = bundle_content(
        model.config,
        preprocessing=preprocessing,
        labels=tuple(labels),
        metrics=metrics or {},
        provenance=provenance or {},
        task=task,
        targets=targets,
    )
    state = model.state_dict()
    layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items())
    with replacing(folder / WEIGHTS) as file:
        metadata = {"format": "pt", CONFIG_KEY: json.dumps(content)}
        write_safetensors(file, layout, state.items(), metadata)
    write_json(folder / CONFIG, content | {FILES: {WEIGHTS: described_file(folder / WEIGHTS)}})


def save_model(folder: str | os.PathLike[str], model: "nn.Module") -> None:
    """Write a bundle of a model with the preprocessing and labels that it was loaded with."""
    source, classes = cast(Any, model).source, cast(Any, model).config.classes
    labels = None if source is None else source.labels
    save_bundle(
        folder,
        model,
        preprocessing=None if source is None else source.preprocessing,
        labels=labels or tuple(map(str, range(classes))),
        task="single-label" if source is None else source.task,
        provenance={"licence": source.licence} if source is not None and source.licence else {},
    )


def bundle_content(
    config: Any,
    *,
    preprocessing: Preprocessing | None,
    labels: tuple[str, ...],
    metrics: Mapping[str, float],
    provenance: Mapping[str, Any],
    task: str = "single-label",
    targets: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Content of `config.json` for a model with this config."""
    return {
        "format_version": FORMAT_VERSION,
        "architecture": next(name for name, cls in ARCHITECTURES.items() if type(config) is cls),
        "model": to_dict(config),
        "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        "labels": list(labels),
        "task": task,
        **({"targets": dict(targets)} if targets else {}),
        "metrics": dict(metrics),
        "provenance": dict(provenance),
    }


def load_bundle(folder: Path) -> "tuple[nn.Module, WeightSource]":
    """Model of a bundle in eval mode, and its source, which `model.source` holds too."""
    import torch

    from vitlab.weights.container import open_weights
    from vitlab.weights.formats.rules import check_blocks, check_shapes

    content = read_bundle_config(folder)
    config = config_of(content, str(folder / CONFIG))
    file = open_weights(folder / WEIGHTS)
    try:
        check_blocks(config.blocks, file.shapes, file=str(file.path))
        with torch.device("meta"):
            model = create_model(config)
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        check_shapes(file.shapes, expected, file=str(file.path))
        check_copy(_copy(file), content, CHECKED, str(folder / CONFIG))
        state = {name: _float32(file.read(name)) for name in expected}
    finally:
        file.close()
    model.load_state_dict(state, assign=True)
    source = WeightSource(
        format="vitlab",
        path=folder,
        preprocessing=stored_preprocessing(content, str(folder / CONFIG)),
        labels=tuple(content["labels"]) if content["labels"] else None,
        task=content["task"] or "single-label",
        licence=content["provenance"].get("licence"),
    )
    model.source = cast(Any, source)
    return model.eval(), source


def verify_copy(folder: Path) -> None:
    """Raise if `config.json` states another use of the weights than their own metadata."""
    from vitlab.weights.container import open_weights

    file = open_weights(folder / WEIGHTS)
    try:
        check_copy(
            _copy(file), read_bundle_config(folder), (*CHECKED, "labels"), str(folder / CONFIG)
        )
    finally:
        file.close()


def _copy(file: "TensorFile") -> Mapping[str, Any]:
    """Copy of `config.json` in the metadata of the weights; empty if there is none."""
    from vitlab.weights.container import CONFIG_KEY

    try:
        copy = parse_json(file.metadata.get(CONFIG_KEY, "{}"))
    except ValueError as error:
        raise WeightsError(f"{file.path}: damaged metadata ({error})") from error
    return copy if isinstance(copy, dict) else {}


def config_of(content: Mapping[str, Any], name: str) -> ModelConfig:
    """Model config from the content of a bundle's `config.json`; `name` is for errors."""
    kind = content["architecture"]
    if kind not in ARCHITECTURES:
        raise WeightsError(f"{name}: architecture {kind!r}; valid: {', '.join(ARCHITECTURES)}")
    try:
        return from_dict(ARCHITECTURES[kind], content["model"])
    except VitlabError as error:
        raise WeightsError(f"{name}: {error}") from error


def _float32(tensor: "Tensor") -> "Tensor":
    return tensor.float() if tensor.is_floating_point() else tensor
