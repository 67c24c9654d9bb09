"""Checkpoints: the whole training state in one safetensors file, written whole or not at all.

Tensors are named `model/…`, `ema/…` and `optimizer/NUMBER/PARAMETER/KEY`; numbers stand in the
header. The header begins with a checksum of the whole file, computed with zeros in its place. What
is random about a step follows from the seed and the step, so no generator is saved.
"""

import json
import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitlab.config import parse_json, without_removed
from vitlab.errors import ConfigError, WeightsError
from vitlab.io.files import replacing
from vitlab.machine.world import World, by_first
from vitlab.training.config import TrainConfig
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
LOSSES = ("best_loss", "lowest_loss")
"""Numbers that older checkpoints do not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Progress of a run besides its state, when the checkpoint was written."""

    settings: Mapping[str, Any]
    """Settings of the run, and its plan."""
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
    """Write the state; whatever happens, `path` holds a complete checkpoint or what it held.

    Of several processes, the first writes: each holds all of it.
    """
    tensors = dict(_tensors(state))
    header = {
        "numbers": {name: getattr(state, name) for name in (*NUMBERS, *LOSSES)},
        "scaler": state.scaler.state_dict(),
        "settings": dict(progress.settings),
        "metrics": progress.metrics,
        "broken": dict(progress.broken),
    }
    if state.sharded:
        from vitlab.training.sharded import write_shards

        write_shards(path.with_suffix(""), tensors, header, state.world)
        if state.world.rank == 0:
            path.unlink(missing_ok=True)
        return
    if state.world.rank:
        return
    layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    metadata = {CHECKSUM_KEY: NO_CHECKSUM.decode(), KEY: json.dumps(header)}
    with replacing(path) as file:
        write_safetensors(file, layout, tensors.items(), metadata)
        file.flush()
        checksum = _checksum(file)
        file.seek(CHECKSUM_AT)
        file.write(checksum)
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint's content, from a file or a folder; WeightsError when any of it is damaged."""
    if path.suffix and not path.exists():
        path = path.with_suffix("")
    if path.is_dir():
        from vitlab.training.sharded import read_header, read_whole

        return _checkpoint(path, read_header(path), read_whole(path))
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
    return _checkpoint(path, header, tensors)


def _checkpoint(path: Path, header: Any, tensors: dict[str, Tensor]) -> Checkpoint:
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
    """True if the checksum covers the whole file; WeightsError if the file does not match it."""
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
    """True if a header has all entries, with values of the right types."""
    kinds = {"numbers": dict, "scaler": dict, "settings": dict, "metrics": str, "broken": dict}
    if not isinstance(header, dict):
        return False
    if not all(isinstance(header.get(name), kind) for name, kind in kinds.items()):
        return False
    numbers = dict.fromkeys(LOSSES, math.inf) | header["numbers"]
    if not all(type(numbers.get(name)) in (int, float) for name in (*NUMBERS, *LOSSES)):
        return False
    return type(header["numbers"]["step"]) is int and header["numbers"]["step"] >= 0


def restore(state: TrainState, stored: Checkpoint) -> Progress:
    """Restore `state` as it was when the checkpoint was written."""
    try:
        _restore(state, stored)
    except (RuntimeError, KeyError) as error:
        raise ConfigError(
            f"{stored.path}: does not fit the model that config.json describes; was that changed?"
        ) from error
    for name in NUMBERS:
        setattr(state, name, stored.numbers[name])
    for name in LOSSES:
        setattr(state, name, stored.numbers.get(name, math.inf))
    if stored.scaler:
        state.scaler.load_state_dict(stored.scaler)
    return stored.progress


def checkpoints(folder: Path) -> list[Path]:
    """The numbered checkpoints of a folder, the one with the most steps first."""
    found = {p: re.fullmatch(r"step-(\d{8,})(\.safetensors)?", p.name) for p in folder.iterdir()}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=steps.__getitem__, reverse=True)


def has_checkpoint(folder: Path) -> bool:
    """True if a folder of checkpoints exists and is not empty."""
    return folder.is_dir() and any(checkpoints(folder))


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints."""
    for path in checkpoints(folder)[keep:]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
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


def restore_weights(state: TrainState, stored: Checkpoint) -> None:
    """Restore the weights and their average alone."""
    model, average = (_under(prefix, stored.tensors) for prefix in ("model/", "ema/"))
    if state.sharded:
        from vitlab.training.parallel import like

        own = state.model.state_dict()
        model = {name: like(value, own[name]) for name, value in model.items()}
        average = {name: like(value, own[name]) for name, value in average.items()}
    state.model.load_state_dict(model)
    if state.ema is not None:
        state.ema.load(average)


def _restore(state: TrainState, checkpoint: Checkpoint) -> None:
    device, stored = next(state.model.parameters()).device, checkpoint.tensors
    restore_weights(state, checkpoint)
    parameters = dict(state.model.named_parameters())
    for number, optimizer in enumerate(state.optimizers):
        for name, value in _under(f"optimizer/{number}/", stored).items():
            parameter, _, key = name.rpartition("/")
            # Its count of steps too: fused AdamW has it where the parameter is.
            target = parameters[parameter]
            if state.sharded and value.shape == target.shape:
                from vitlab.training.parallel import like

                optimizer.state[target][key] = like(value, target)
            else:
                optimizer.state[target][key] = value.to(device)


def _under(prefix: str, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }


# Resuming from the newest readable checkpoint of the same run.

FREE = frozenset(
    (
        *("workers", "max_broken", "judge_all", "judged_on"),
        *("checkpoint_every", "keep", "loggers", "parallel"),
    )
)
"""Settings that a run may change on the way: its weights do not depend on them."""
ADDED: Mapping[str, Any] = {"shards": 0}
"""Settings that older checkpoints do not have, with their defaults."""
PLAN = "plan"
"""Key of the plan in a checkpoint's settings; older checkpoints have none."""

log = logging.getLogger(__name__)


def resume(folder: Path, state: TrainState, settings: Mapping[str, Any]) -> Progress:
    """Restore `state` from the newest checkpoint in `folder`; without any, leave it as it is.

    Of several processes, the first reads the file.
    """
    found: list[Checkpoint] = []

    def read() -> None:
        if (stored := _newest(folder)) is not None:
            known = {**ADDED, **without_removed(TrainConfig, stored.progress.settings)}
            _check_settings(known, {k: v for k, v in settings.items() if k in known or k != PLAN})
            found.append(stored)

    by_first(read, state.world)
    stored = share_checkpoint(next(iter(found), None), state.world)
    return Progress(settings=settings) if stored is None else restore(state, stored)


def share_checkpoint(stored: Checkpoint | None, world: World) -> Checkpoint | None:
    """Checkpoint of the first process in every process; None: it has none."""
    if world.size == 1:
        return stored
    header = None
    if stored is not None:
        layout = [(n, str(t.dtype), list(t.shape)) for n, t in stored.tensors.items()]
        header = (str(stored.path), stored.numbers, stored.scaler, asdict(stored.progress), layout)
    header = world.share(header)
    if header is None:
        return None
    path, numbers, scaler, progress, layout = header
    if stored is None:
        stored = Checkpoint(
            path=Path(path),
            tensors={name: _empty(dtype, shape) for name, dtype, shape in layout},
            numbers=numbers,
            scaler=scaler,
            progress=Progress(**progress),
        )
    world.copy_from_first(stored.tensors.values())
    return stored


def _empty(dtype: str, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))


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
    """Raise if a setting changed that the weights depend on."""
    for key in sorted({*then, *now} - (set() if prefix else FREE)):
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            _check_settings(old, new, f"{prefix}{key}.")
        elif old != new:
            raise ConfigError(
                f"config.json was changed since the run began: {prefix}{key} was {old!r} and is "
                f"{new!r}; change it back, or begin another run"
            )
