"""The folder of an experiment: `experiment.json` says which one, so that it can be continued."""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import flat, from_dict, parse_json, to_dict
from vitlab.errors import ConfigError
from vitlab.experiments.spec import Experiment
from vitlab.io.files import locked, write_json
from vitlab.jobs.run_folder import LEFTOVER

FILE, LOCK = "experiment.json", ".lock"
ABSENT = "absent"
HARMLESS = frozenset(
    f"train.{name}" for name in ("checkpoint_every", "keep", "tensorboard", "workers")
)
"""Fields that change nothing of what is learnt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """An experiment as it was begun."""

    experiment: Experiment
    data: str
    minutes: float | None
    """Of one training, as decided."""
    smoke: bool
    seeds: int
    command: str
    precision: str = ""
    """In which all trainings compute, settled where the experiment was begun; empty: not yet."""
    images: tuple[int, ...] = ()
    """To learn from, of each class, as they were last seen; empty: not counted."""
    settled: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Every arm to the last field, those of earlier calls included."""
    starts: tuple[str, ...] = ()
    """Arms that others start from, also where those others were not asked for."""
    version: str = __version__


def check_folder(folder: Path, record: Record) -> Record | None:
    """What the folder holds of the same experiment; a place that holds something else is refused.

    Nothing is written yet.
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
    """Whether a file may lie in a folder in which no experiment was begun: one that died early."""
    return name == LOCK or bool(LEFTOVER.fullmatch(name))


def _read(path: Path) -> Record:
    try:
        return from_dict(Record, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not the record of an experiment ({error})") from error


def _check_same(folder: Path, then: Record, now: Record) -> None:
    """What all arms have in common; words, comparisons, seeds and arms may change."""
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
    """Refuse data that has changed: what was learnt from more or fewer images is no pair."""
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
    settled: dict[str, dict[str, Any]],
    usual: Callable[[str], Mapping[str, Any]],
) -> None:
    """Refuse an arm that was trained with other settings; the first that differs is named.

    A field that there was not then has been what it `usual`ly is.
    """
    for arm in settled:
        if arm not in then.settled:
            continue
        old = dict(flat(then.settled[arm]))
        new = dict(flat(json.loads(json.dumps(settled[arm]))))
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


@contextmanager
def working_in(folder: Path, record: Record) -> Iterator[None]:
    """Keep other processes out of the folder, which now holds this experiment."""
    folder.mkdir(parents=True, exist_ok=True)

    def refuse() -> None:
        raise ConfigError(f"{folder}: another process is working on it; let it end, or end it")

    with locked(folder / LOCK, refuse):
        write_json(folder / FILE, to_dict(record))
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
    """The command line that begins or continues an experiment of a name or file."""
    words = ["vitlab", "experiment", what, "--out", str(out)]
    wanted = None if arms is None else ",".join(arms)
    given = {"--data": data, "--seeds": seeds, "--minutes": minutes, "--arms": wanted}
    for name, value in given.items():
        if value is not None:
            words += [name, f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, *(["--smoke"] if smoke else [])])


def exact_call(name: str, out: Path, **given: Any) -> str:
    """The same of an experiment that is an object in Python."""
    wanted = {key: value for key, value in given.items() if value not in (None, False)}
    words = [f"out={str(out)!r}", *(f"{key}={value!r}" for key, value in wanted.items())]
    return f"vitlab.experiment({name}, {', '.join(words)})  # {name}: the Experiment of this name"
