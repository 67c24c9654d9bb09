"""`save_weights`: write a model atomically in any format that can express it."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from vitlab.config import to_dict
from vitlab.errors import WeightsError
from vitlab.io.files import replacing, write_json
from vitlab.models.vit import VisionTransformer
from vitlab.weights.archives import write_npz
from vitlab.weights.bundle import CONFIG, FORMAT_VERSION, WEIGHTS, is_bundle
from vitlab.weights.container import CONFIG_KEY, NOTE, NOTE_LIMIT, write_safetensors
from vitlab.weights.formats.detect import layout_named
from vitlab.weights.formats.huggingface_config import is_huggingface
from vitlab.weights.formats.rules import Rule, Shape, check_complete, expected_shapes
from vitlab.weights.reading import read_json
from vitlab.weights.sidecar import NOTED, huggingface_config, huggingface_processor
from vitlab.weights.source import WeightSource

CONTAINERS = {
    "google": (".npz", ".safetensors"),
    "timm": (".safetensors", ".pth", ".pt", ".bin"),
    "huggingface": ("", ".safetensors", ".bin"),
    "huggingface-clip": (".safetensors", ".bin", ".pth", ".pt"),
    "huggingface-dino": (".safetensors", ".bin", ".pth", ".pt"),
    "open-clip": (".safetensors", ".pth", ".pt", ".bin"),
    "open-clip-timm": (".safetensors", ".pth", ".pt", ".bin"),
    "torchvision": (".safetensors", ".pth", ".pt"),
    "vit-pytorch": (".safetensors", ".pth", ".pt"),
    "vitlab": (".safetensors", ".pth", ".pt"),
}
"""Suffixes of each format; the empty one is a folder."""


def save_weights(
    model: VisionTransformer, path: str | os.PathLike[str], *, format: str = "vitlab"
) -> None:
    """Write the model's weights; the suffix chooses the container.

    Every safetensors file has our config in its metadata, and the zip archives `.npz` and `.pth`
    have preprocessing, labels and values not in the tensors in their comment, which other readers
    ignore: nothing is lost between two calls of this package.
    """
    layout = layout_named(format)
    target = Path(path)
    suffix = _container(target, format)
    _check_place(target, suffix)
    layout.check(model.config)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    source = cast(WeightSource | None, model.source)
    dialect = source.dialect if source and source.format == format else frozenset()
    rules = layout.rules(model.config, dialect)
    check_complete(rules, state, format=format)
    if suffix == "":
        _save_folder(model, target, rules, state)
    else:
        _save_file(model, target, suffix, rules, state, wrapped=format == "vitlab")


def _container(path: Path, format: str) -> str:
    suffix = "" if path.is_dir() else path.suffix
    if suffix not in CONTAINERS[format]:
        valid = ", ".join(name or "a folder" for name in CONTAINERS[format])
        raise WeightsError(
            f"{path}: format {format!r} is not written as {suffix or 'a folder'!r}; valid: {valid}"
        )
    if not path.absolute().parent.is_dir():
        raise WeightsError(f"{path}: folder {path.absolute().parent} does not exist")
    return suffix


def _check_place(path: Path, suffix: str) -> None:
    """Raise if the file belongs to a bundle, or its folder to something other than weights."""
    if suffix and path.name == WEIGHTS and is_bundle(path.parent):
        raise WeightsError(
            f"{path}: the weights of a bundle, which would no longer load; valid: another place"
        )
    config = path / CONFIG
    if not suffix and config.is_file() and not is_huggingface(read_json(config)):
        raise WeightsError(
            f"{path}: has a {CONFIG} of something else; valid: a new folder, or one of format "
            f"'huggingface'"
        )


def _save_file(
    model: VisionTransformer,
    path: Path,
    suffix: str,
    rules: list[Rule],
    state: dict[str, Tensor],
    *,
    wrapped: bool = False,
) -> None:
    with replacing(path) as file:
        if suffix == ".npz":
            write_npz(file, _theirs(rules, state), note(model))
        elif suffix == ".safetensors":
            metadata = {"format": "pt", CONFIG_KEY: describe(model)}
            write_safetensors(file, _layout(rules, state), _theirs(rules, state), metadata)
        else:
            tensors = {name: _alone(tensor) for name, tensor in _theirs(rules, state)}
            torch.save(
                {CONFIG_KEY: describe(model), "model": tensors} if wrapped else tensors, file
            )
            if not wrapped:
                _append_comment(file, note(model))


def _layout(
    rules: list[Rule], state: dict[str, Tensor]
) -> Iterator[tuple[str, torch.dtype, Shape]]:
    """Name, dtype and shape of each of their tensors, before any is converted."""
    shapes = expected_shapes(rules, {name: tuple(tensor.shape) for name, tensor in state.items()})
    for rule in rules:
        dtype = state[rule.ours[0]].dtype if rule.ours else rule.to_theirs([])[0].dtype
        for name in rule.theirs:
            yield name, dtype, shapes[name]


def _alone(tensor: Tensor) -> Tensor:
    """Tensor that does not share storage with a larger one."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.dtype.itemsize
    return tensor if whole else tensor.clone()


def _theirs(rules: list[Rule], state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors one after the other."""
    for rule in rules:
        theirs = rule.to_theirs([state[name] for name in rule.ours])
        for name, tensor in zip(rule.theirs, theirs, strict=True):
            yield name, tensor.cpu().contiguous()


def _append_comment(file: BinaryIO, comment: bytes) -> None:
    """Append a comment to a zip archive that has none: its length is the last field."""
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(comment)) + comment)


def describe(model: VisionTransformer) -> str:
    """Config, preprocessing and labels as JSON, as a bundle's config.json has them."""
    content = {"format_version": FORMAT_VERSION, "model": to_dict(model.config)}
    return json.dumps(content | _use(model))


def note(model: VisionTransformer) -> bytes:
    """Comment of an archive: values not in the tensors; labels that do not fit are left out."""
    config = to_dict(model.config)
    content = {"fields": {name: config[name] for name in NOTED}, **_use(model)}
    whole = NOTE + json.dumps(content).encode()
    if len(whole) <= NOTE_LIMIT:
        return whole
    return NOTE + json.dumps(content | {"labels": None}).encode()


def _use(model: VisionTransformer) -> dict[str, Any]:
    """Further metadata of the weights: preprocessing, labels, origin; None if unknown."""
    source = cast(WeightSource | None, model.source)
    preparation = source.preprocessing if source else None
    return {
        "preprocessing": preparation.to_json() if preparation else None,
        "labels": list(source.labels) if source and source.labels else None,
        "task": source.task if source and source.task != "single-label" else None,
        "name": source.name if source else None,
        "licence": source.licence if source else None,
    }


def _save_folder(
    model: VisionTransformer, folder: Path, rules: list[Rule], state: dict[str, Tensor]
) -> None:
    """Write a folder for `from_pretrained(folder)`."""
    source = cast(WeightSource | None, model.source)
    files = {"config.json": huggingface_config(model.config, source)}
    if source is not None and source.preprocessing is not None:
        files["preprocessor_config.json"] = huggingface_processor(source.preprocessing)
    folder.mkdir(exist_ok=True)
    _save_file(model, folder / "model.safetensors", ".safetensors", rules, state)
    for name, content in files.items():
        write_json(folder / name, content)
