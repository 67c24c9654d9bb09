"""Checkpoints: the whole training state in one safetensors file, written whole or not at all.

Tensors are named `model/…`, `ema/…` and `optimizer/NUMBER/PARAMETER/KEY`; numbers stand in the
header. What is random about a step follows from the seed and the step, so no generator is saved.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.files import replacing
from vitlab.train.state import TrainState
from vitlab.weights.files import open_weights
from vitlab.weights.safetensors import write_safetensors

KEY = "vitlab-training"
NUMBERS = ("step", "best", "best_step", "since_best", "seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where the run's other files stood when the checkpoint was written."""

    metrics_bytes: int
    broken: dict[str, str]
    """Images that could not be read, with the reason."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Name of the checkpoint after `step` updates."""
    return folder / f"step-{step:08d}.safetensors"


def save_checkpoint(path: Path, state: TrainState, progress: Progress) -> None:
    """Write the state; whatever happens, `path` holds a complete checkpoint or what it held."""
    tensors = dict(_tensors(state))
    header = {
        "numbers": {name: getattr(state, name) for name in NUMBERS},
        "scaler": state.scaler.state_dict(),
        "metrics_bytes": progress.metrics_bytes,
        "broken": progress.broken,
    }
    layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    with replacing(path) as file:
        write_safetensors(file, layout, tensors.items(), {KEY: json.dumps(header)})


def load_checkpoint(path: Path, state: TrainState) -> Progress:
    """Make `state` what it was, and say where the run's files stood."""
    file = open_weights(path)
    try:
        if KEY not in file.metadata:
            raise WeightsError(f"{path}: not a checkpoint of a run")
        header = json.loads(file.metadata[KEY])
        stored = {name: file.read(name) for name in file.shapes}
    finally:
        file.close()
    _restore(state, stored)
    for name in NUMBERS:
        setattr(state, name, header["numbers"][name])
    if header["scaler"]:
        state.scaler.load_state_dict(header["scaler"])
    return Progress(metrics_bytes=header["metrics_bytes"], broken=header["broken"])


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most steps, if there is any."""
    return max(_numbered(folder), default=None)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints."""
    for path in sorted(_numbered(folder))[:-keep]:
        path.unlink()


def _numbered(folder: Path) -> list[Path]:
    return [p for p in folder.glob("step-*.safetensors") if re.search(r"step-\d{8}\.", p.name)]


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
            # AdamW counts its steps on the CPU.
            target = torch.device("cpu") if value.ndim == 0 else device
            optimizer.state[parameters[parameter]][key] = value.to(target)


def _under(prefix: str, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
