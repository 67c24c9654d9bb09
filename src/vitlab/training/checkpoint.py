"""Checkpoints: the whole training state in one safetensors file, written whole or not at all.

Tensors are named `model/…`, `ema/…` and `optimizer/NUMBER/PARAMETER/KEY`; numbers stand in the
header. The header begins with a checksum of the whole file, computed with zeros in its place. What
is random about a step follows from the seed and the step, so no generator is saved.
"""

import json
import logging
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError
from vitlab.io.files import replacing
from vitlab.training.state import TrainState
from vitlab.weights.container import open_weights, raw_bytes, write_safetensors
from vitlab.weights.reading import reading

KEY, CHECKSUM_KEY = "vitlab-training", "vitlab-checksum"
NO_CHECKSUM = b"00000000"
START = f'{{"__metadata__":{{"{CHECKSUM_KEY}":"'.encode()
"""Beginning of the header; the digits of the checksum follow."""
CHECKSUM_AT = 8 + len(START)
BLOCK = 1 << 20
"""Bytes read at once."""
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
    }
    layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    metadata = {CHECKSUM_KEY: NO_CHECKSUM.decode(), KEY: json.dumps(header)}
    with replacing(path) as file:
        write_safetensors(file, layout, tensors.items(), metadata)
        file.flush()
        checksum = _checksum(file)
        file.seek(CHECKSUM_AT)
        file.write(checksum)


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint's content; WeightsError when any of it is damaged."""
    whole = _is_whole(path)
    file = open_weights(path)
    try:
        if KEY not in file.metadata:
            raise WeightsError(f"{path}: not a checkpoint of a run")
        header = _parse_header(path, file.metadata[KEY])
        tensors = {name: file.read(name) for name in file.shapes}
    finally:
        file.close()
    if not whole:
        _check_older(path, header, tensors)
    if not _is_header(header):
        raise ConfigError(f"{path}: written by another version of vitlab, which must resume it")
    return Checkpoint(
        path=path,
        tensors=tensors,
        numbers=header["numbers"],
        scaler=header["scaler"],
        progress=Progress(
            settings=header["settings"], metrics=header["metrics"], broken=header["broken"]
        ),
    )


def _parse_header(path: Path, text: str) -> Any:
    try:
        return parse_json(text)
    except ConfigError as error:
        raise WeightsError(f"{path}: damaged ({error})") from error


def _is_whole(path: Path) -> bool:
    """Whether the checksum covers the whole file; WeightsError if the file does not match it."""
    with reading(path), path.open("rb") as file:
        start = file.read(CHECKSUM_AT + len(NO_CHECKSUM))
        if start[8:CHECKSUM_AT] != START:
            return False
        if start[CHECKSUM_AT:] != _checksum(file):
            raise WeightsError("damaged (its checksum does not match)")
        return True


def _checksum(file: BinaryIO) -> bytes:
    """The digits of a file's checksum, computed with zeros in their place."""
    start = os.pread(file.fileno(), CHECKSUM_AT, 0) + NO_CHECKSUM
    position, checksum = len(start), zlib.crc32(start)
    while block := os.pread(file.fileno(), BLOCK, position):
        checksum = zlib.crc32(block, checksum)
        position += len(block)
    return b"%08x" % checksum


def _check_older(path: Path, header: Any, tensors: Mapping[str, Tensor]) -> None:
    """Check a file of an older version, whose checksum covers only the tensors."""
    checksum = 0
    for tensor in tensors.values():
        checksum = zlib.crc32(raw_bytes(tensor).data, checksum)
    stored = header.get("checksum") if isinstance(header, dict) else None
    if stored != checksum or not _is_header(header):
        raise WeightsError(f"{path}: damaged (its checksum does not match)")


def _is_header(header: Any) -> bool:
    """Whether a header has all entries, with values of the right types."""
    kinds = {"numbers": dict, "scaler": dict, "settings": dict, "metrics": str, "broken": dict}
    if not isinstance(header, dict):
        return False
    if not all(isinstance(header.get(name), kind) for name, kind in kinds.items()):
        return False
    if not all(type(header["numbers"].get(name)) in (int, float) for name in NUMBERS):
        return False
    return type(header["numbers"]["step"]) is int and header["numbers"]["step"] >= 0


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


# Where a run goes on: its newest checkpoint that can be read, if it is still the same run.

FREE = frozenset(("workers", "max_broken", "judge_all", "judged_on", "checkpoint_every", "keep"))
"""Settings that a run may change on the way: its weights do not depend on them."""
PLAN = "plan"
"""Of a checkpoint's settings, what is no field of the run's own; older ones have none."""

log = logging.getLogger(__name__)


def resume(folder: Path, state: TrainState, settings: Mapping[str, Any]) -> Progress:
    """Bring `state` to where the checkpoints in `folder` lead; without any, leave it as it is."""
    stored = _newest(folder)
    if stored is None:
        return Progress(settings=settings)
    known = stored.progress.settings
    _check_settings(known, {k: v for k, v in settings.items() if k in known or k != PLAN})
    return restore(state, stored)


def _newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; damaged ones are renamed, not removed."""
    damaged: dict[Path, WeightsError] = {}
    for path in checkpoints(folder):
        try:
            stored = read_checkpoint(path)
        except WeightsError as error:
            damaged[path] = error
            continue
        for bad, reason in damaged.items():
            bad.rename(bad.with_name(f"{bad.name}.damaged"))
            log.warning("%s; the run goes on from %s", reason, path.name)
        return stored
    if damaged:
        raise WeightsError(
            f"{next(iter(damaged.values()))}; no other checkpoint can be read: remove "
            f"{folder} to begin again at step 1"
        )
    return None


def _check_settings(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> None:
    """A changed setting would end in other weights than the run was to have."""
    for key in sorted({*then, *now} - (set() if prefix else FREE)):
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            _check_settings(old, new, f"{prefix}{key}.")
        elif old != new:
            raise ConfigError(
                f"config.json was changed since the run began: {prefix}{key} was {old!r} and is "
                f"{new!r}; change it back, or begin another run"
            )
