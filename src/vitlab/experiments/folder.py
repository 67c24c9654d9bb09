"""The folder of an experiment; `experiment.json` describes it, so that it can be continued."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import flat, from_dict, parse_json, to_dict, without_removed
from vitlab.errors import ConfigError
from vitlab.experiments.spec import Experiment
from vitlab.io.files import locked, write_json
from vitlab.jobs.plan import LEFTOVER
from vitlab.machine.world import World, by_first
from vitlab.training.config import TrainConfig

FILE, LOCK = "experiment.json", ".lock"
ABSENT = "absent"
HARMLESS = frozenset(
    f"train.{name}" for name in ("checkpoint_every", "keep", "loggers", "tensorboard", "workers")
)
"""Fields that do not affect the result of training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Definition and options of the experiment in a folder."""

    experiment: Experiment
    data: str
    minutes: float | None
    """Minutes per training."""
    smoke: bool
    seeds: int
    command: str
    precision: str = ""
    """Precision of all trainings, chosen when the experiment started; empty: not chosen yet."""
    images: tuple[int, ...] = ()
    """Training images of each class at the last start; empty: not counted."""
    settled: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Full configuration of every arm, including those of earlier calls."""
    starts: tuple[str, ...] = ()
    """Arms that others start from, also if those others were not selected."""
    version: str = __version__


def check_folder(folder: Path, record: Record) -> Record | None:
    """Record of the same experiment in the folder, if any; raises if it holds something else.

    Writes nothing.
    """
    path = folder / FILE
    if path.is_file():
        then = _read(path)
        _check_same(folder, then, record)
        return then
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose a folder for --out")
    if folder.exists() and not all(_left_behind(item.name) for item in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty and holds no experiment; choose another --out")
    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"{folder} cannot be made: {above} cannot be written; choose another --out"
        )
    return None


def _left_behind(name: str) -> bool:
    """True for a leftover of an experiment that ended before its record was written."""
    return name == LOCK or bool(LEFTOVER.fullmatch(name))


def _read(path: Path) -> Record:
    try:
        return from_dict(Record, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not the record of an experiment ({error})") from error


def _check_same(folder: Path, then: Record, now: Record) -> None:
    """Raise if a setting shared by all arms differs; titles, comparisons, seeds and arms may."""
    for key, (old, new) in _common(then, now).items():
        if old != new:
            raise ConfigError(
                f"{folder} holds an experiment with {key} {old}, not {new}; continue it: "
                f"{then.command}, or choose another --out"
            )


def _common(then: Record, now: Record) -> dict[str, tuple[Any, Any]]:
    fields = {
        key: (getattr(then, key), getattr(now, key)) for key in ("data", "minutes", "smoke")
    } | {
        key: (getattr(then.experiment, key), getattr(now.experiment, key))
        for key in ("name", "matched", "measure", "probes")
    }
    if now.experiment.matched != "minutes":
        first = (then.experiment.arms[0].name, now.experiment.arms[0].name)
        fields["the first arm"] = first
    return fields


def check_images(folder: Path, then: Record, images: Sequence[int]) -> None:
    """Raise if the training data changed: results on other images cannot be paired."""
    if then.images and then.images != tuple(images):
        raise ConfigError(
            f"{folder} holds an experiment with {sum(then.images):,} images to learn from; "
            f"{then.data} now has {_counted(then.images, images)}; choose another --out"
        )


def _counted(then: Sequence[int], now: Sequence[int]) -> str:
    same = sum(then) == sum(now)
    return f"{sum(now):,}{', otherwise divided into classes' if same else ''}"


def check_arms(
    folder: Path,
    then: Record,
    resolved: dict[str, dict[str, Any]],
    usual: Callable[[str], Mapping[str, Any]],
) -> None:
    """Raise if an arm was trained with other settings, with the first that differs.

    A field missing in an older record counts as its default, from `usual`.
    """
    for arm in resolved:
        if arm not in then.settled:
            continue
        old = dict(flat(then.settled[arm] | _training(then.settled[arm])))
        new = dict(flat(json.loads(json.dumps(resolved[arm]))))
        if not new.keys() <= old.keys():
            known = json.loads(json.dumps(dict(usual(arm))))
            old = {key: known[key] for key in new if key in known} | old
        for key in (*new, *old):
            one, other = old.get(key, ABSENT), new.get(key, ABSENT)
            if one != other and key not in HARMLESS:
                raise ConfigError(
                    f"{folder} holds arm {arm!r} with {key} {one}, not {other}; "
                    f"choose another --out"
                )


def _training(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an arm's training, without options that were removed since."""
    train = stored["train"]
    return {"train": None if train is None else without_removed(TrainConfig, train, "train.")}


@contextmanager
def working_in(folder: Path, record: Record, world: World) -> Iterator[None]:
    """Lock the folder and write the record of this experiment to it, in the first process."""

    def refuse() -> None:
        raise ConfigError(f"{folder}: another process is working on it; let it end, or end it")

    def enter() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        lock.enter_context(locked(folder / LOCK, refuse))
        write_json(folder / FILE, to_dict(record))

    with ExitStack() as lock:
        by_first(enter, world)
        yield


def exact_command(
    what: str,
    out: Path,
    *,
    data: str | None,
    seeds: int | None,
    minutes: float | None,
    smoke: bool,
    arms: Sequence[str] | None,
) -> str:
    """Command line that starts or continues a named experiment or one from a file."""
    words = ["vitlab", "experiment", what, "--out", str(out)]
    wanted = None if arms is None else ",".join(arms)
    given = {"--data": data, "--seeds": seeds, "--minutes": minutes, "--arms": wanted}
    for name, value in given.items():
        if value is not None:
            words += [name, f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, *(["--smoke"] if smoke else [])])


def exact_call(name: str, out: Path, **given: Any) -> str:
    """Python call that starts or continues an experiment that is a Python object."""
    wanted = {key: value for key, value in given.items() if value not in (None, False)}
    words = [f"out={str(out)!r}", *(f"{key}={value!r}" for key, value in wanted.items())]
    return f"vitlab.experiment({name}, {', '.join(words)})  # {name}: the Experiment of this name"


# Result of one training: `result.json` in its folder, which marks it as finished.


RESULT = "result.json"
TRAIN_ACCURACY = "train_accuracy"
"""Name of the probe that measures the training accuracy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Result of one arm with one seed."""

    arm: str
    seed: int
    value: float | None
    """Value to compare: accuracy; None without labels."""
    held_out: float | None
    """Accuracy on the held-out images; None without any."""
    images: int
    """Number of images behind the value."""
    right: str = ""
    """Per-image correctness: one bit each, the first in the highest bit of a hex digit."""
    draws: tuple[float, ...] = ()
    """Few-shot accuracy of each draw; all arms of a seed share the draws."""
    parameters: int = 0
    forward: int = 0
    """FLOPs of one image through the model."""
    steps: int = 0
    images_seen: int = 0
    pflops: float = 0.0
    """Training compute in 10^15 FLOPs."""
    minutes: float = 0.0
    """Wall time of the training."""
    probes: dict[str, list[float]] = field(default_factory=dict)
    """Additional measurements, by name."""

    def __post_init__(self) -> None:
        if self.images < 0:
            raise ConfigError(f"{self.images} images; valid: at least 0")
        digits = (self.images + 3) // 4
        if self.right and not re.fullmatch(f"[0-9a-f]{{{digits}}}", self.right):
            raise ConfigError(f"'right' is not {digits} hexadecimal digits")

    @property
    def bits(self) -> list[bool] | None:
        """Per-image correctness; None if it was not stored."""
        return unpack(self.right, self.images) if self.right else None


def pack(right: Sequence[bool]) -> str:
    """Bits as hexadecimal digits."""
    padded = [*right, *[False] * (-len(right) % 4)]
    digits = (padded[i : i + 4] for i in range(0, len(padded), 4))
    return "".join(f"{8 * a + 4 * b + 2 * c + d:x}" for a, b, c, d in digits)


def unpack(text: str, count: int) -> list[bool]:
    """Inverse of `pack`."""
    return [bool(int(text[i // 4], 16) >> (3 - i % 4) & 1) for i in range(count)]


def read_result(folder: Path) -> Result | None:
    """Result of the training in a folder; None if it has not finished."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        return from_dict(Result, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{path}: damaged ({error}); remove {folder} to train it again"
        ) from error


def write_result(folder: Path, result: Result) -> None:
    """Write the result, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, to_dict(result))
