"""Bundles: a folder with `model.safetensors` and `config.json`, complete for prediction."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import VitlabError, WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import replacing, write_json
from vitlab.models.build import create_model
from vitlab.models.config import ViTConfig
from vitlab.models.variants import ModelConfig, ResNetConfig, TutorialCNNConfig
from vitlab.weights.bundle_files import (
    CHECKED,
    CONFIG,
    FILES,
    FORMAT_VERSION,
    ONNX,
    WEIGHTS,
    check_copy,
    described_file,
    read_bundle_config,
)
from vitlab.weights.container import CONFIG_KEY, TensorFile, open_weights, write_safetensors
from vitlab.weights.formats.rules import check_blocks, check_file
from vitlab.weights.source import WeightSource, stored_preprocessing

ARCHITECTURES: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "resnet": ResNetConfig,
    "cnn-tutorial": TutorialCNNConfig,
}


def save_bundle(
    folder: Path,
    model: nn.Module,
    *,
    preprocessing: Preprocessing,
    labels: tuple[str, ...],
    metrics: Mapping[str, float],
    provenance: Mapping[str, Any],
    task: str = "single-label",
    targets: Mapping[str, Any] | None = None,
) -> None:
    """Write the model and its metadata; `config.json` is written last and makes it a bundle.

    `provenance` is any JSON value; of its keys, the model card uses `model`, `recipe`, `data`,
    `seed`, `command`, `commit`, `vitlab`, `weights` (`ema` or `raw`), `licence`, and the cost of
    training: `steps`, `images_seen`, `pflops` (10^15 FLOPs) and `minutes`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, ONNX):  # an exported model of other weights must not stay
        (folder / name).unlink(missing_ok=True)
    content = bundle_content(
        model.config,
        preprocessing=preprocessing,
        labels=labels,
        metrics=metrics,
        provenance=provenance,
        task=task,
        targets=targets,
    )
    state = model.state_dict()
    layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items())
    with replacing(folder / WEIGHTS) as file:
        metadata = {"format": "pt", CONFIG_KEY: json.dumps(content)}
        write_safetensors(file, layout, state.items(), metadata)
    write_json(folder / CONFIG, content | {FILES: {WEIGHTS: described_file(folder / WEIGHTS)}})


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


def load_bundle(folder: Path) -> tuple[nn.Module, WeightSource]:
    """Model of a bundle in eval mode, and its source, which `model.source` holds too."""
    content = read_bundle_config(folder)
    config = config_of(content, str(folder / CONFIG))
    file = open_weights(folder / WEIGHTS)
    try:
        check_blocks(config.blocks, file.shapes, file=str(file.path))
        with torch.device("meta"):
            model = create_model(config)
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        check_file(file.shapes, expected, file=str(file.path))
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
    file = open_weights(folder / WEIGHTS)
    try:
        check_copy(
            _copy(file), read_bundle_config(folder), (*CHECKED, "labels"), str(folder / CONFIG)
        )
    finally:
        file.close()


def _copy(file: TensorFile) -> Mapping[str, Any]:
    """Copy of `config.json` in the metadata of the weights; empty if there is none."""
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


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
