"""Checkpoints: the whole training state in one safetensors file, written whole or not at all.

Tensors are named `model/…`, `ema/…` and `optimizer/NUMBER/PARAMETER/KEY`; numbers stand in the
header, and so does a checksum. What is random about a step follows from the seed and the step, so
no generator is saved.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from vitlab.errors import ConfigError, WeightsError
from vitlab.files import replacing
from vitlab.train.state import TrainState
from vitlab.weights.files import open_weights
from vitlab.weights.reading import reading
from vitlab.weights.safetensors import raw_bytes, write_safetensors

KEY = "vitlab-training"
NUMBERS = ("step", "highest", "best", "best_step", "since_best", "seconds", "images", "flops")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a run had come to, besides the state, when the checkpoint was written."""

    settings: Mapping[str, Any]
    """What the run was decided to be."""
    metrics: str = ""
    """The lines of `metrics.jsonl`."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Images that could not be read, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint as it was read, whole and unharmed."""

    path: Path
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    scaler: dict[str, Any]
    progress: Progress


def checkpoint_path(folder: Path, step: int) -> Path:
    """Name of the checkpoint after `step` updates."""
    return folder / f"step-{step:08d}.safetensors"


def save_checkpoint(path: Path, state: TrainState, progress: Progress) -> None:
    """Write the state; whatever happens, `path` holds a complete checkpoint or what it held."""
    tensors = dict(_tensors(state))
    header = {
        "numbers": {name: getattr(state, name) for name in NUMBERS},
        "scaler": state.scaler.state_dict(),
        "settings": dict(progress.settings),
        "metrics": progress.metrics,
        "broken": dict(progress.broken),
        "checksum": _checksum(tensors),
    }
    layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    with replacing(path) as file:
        write_safetensors(file, layout, tensors.items(), {KEY: json.dumps(header)})


def load_checkpoint(path: Path, state: TrainState) -> Progress:
    """Make `state` what it was, and tell what the run had come to."""
    return restore(state, read_checkpoint(path))


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint's content; WeightsError when any of it is damaged."""
    file = open_weights(path)
    try:
        if KEY not in file.metadata:
            raise WeightsError(f"{path}: not a checkpoint of a run")
        with reading(path):
            header = json.loads(file.metadata[KEY])
        tensors = {name: file.read(name) for name in file.shapes}
    finally:
        file.close()
    if "checksum" not in header or not set(NUMBERS) <= set(header["numbers"]):
        raise ConfigError(f"{path}: written by another version of vitlab, which must resume it")
    if header["checksum"] != _checksum(tensors):
        raise WeightsError(f"{path}: damaged (the checksum of its tensors is another)")
    return Checkpoint(
        path=path,
        tensors=tensors,
        numbers=header["numbers"],
        scaler=header["scaler"],
        progress=Progress(
            settings=header["settings"], metrics=header["metrics"], broken=header["broken"]
        ),
    )


def restore(state: TrainState, stored: Checkpoint) -> Progress:
    """Make `state` what it was when the checkpoint was written."""
    try:
        _restore(state, stored.tensors)
    except (RuntimeError, KeyError) as error:
        raise ConfigError(
            f"{stored.path}: does not fit the model that config.json describes; was that changed?"
        ) from error
    for name in NUMBERS:
        setattr(state, name, stored.numbers[name])
    if stored.scaler:
        state.scaler.load_state_dict(stored.scaler)
    return stored.progress


def checkpoints(folder: Path) -> list[Path]:
    """The numbered checkpoints of a folder, the one with the most steps first."""
    found = {p: re.fullmatch(r"step-(\d{8,})\.safetensors", p.name) for p in folder.iterdir()}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=steps.__getitem__, reverse=True)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints."""
    for path in checkpoints(folder)[keep:]:
        path.unlink()


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    checksum = 0
    for tensor in tensors.values():
        checksum = zlib.crc32(raw_bytes(tensor).data, checksum)
    return checksum


def _tensors(state: TrainState) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in state.model.state_dict().items():
        yield f"model/{name}", tensor
    for name, tensor in (state.ema.state if state.ema else {}).items():
        yield f"ema/{name}", tensor
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    for number, optimizer in enumerate(state.optimizers):
        for parameter, values in optimizer.state.items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    yield f"optimizer/{number}/{names[id(parameter)]}/{key}", value


def _restore(state: TrainState, stored: dict[str, Tensor]) -> None:
    device = next(state.model.parameters()).device
    state.model.load_state_dict(_under("model/", stored))
    if state.ema is not None:
        state.ema.load(_under("ema/", stored))
    parameters = dict(state.model.named_parameters())
    for number, optimizer in enumerate(state.optimizers):
        for name, value in _under(f"optimizer/{number}/", stored).items():
            parameter, _, key = name.rpartition("/")
            # Its count of steps too: fused AdamW has it where the parameter is.
            optimizer.state[parameters[parameter]][key] = value.to(device)


def _under(prefix: str, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
