"""The folder of an experiment: `experiment.json` says which one, so that it can be continued."""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError
from vitlab.experiments.spec import Experiment
from vitlab.files import write_json
from vitlab.lock import locked

FILE, LOCK = "experiment.json", ".lock"


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
    version: str = __version__


def check_folder(folder: Path, record: Record) -> None:
    """Refuse a place that holds something else, before anything is written."""
    path = folder / FILE
    if path.is_file():
        _check_same(folder, _read(path), record)
        return
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose a folder for --out")
    if folder.exists() and any(item.name != LOCK for item in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty and holds no experiment; choose another --out")
    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"{folder} cannot be made: {above} cannot be written; choose another --out"
        )


def _read(path: Path) -> Record:
    try:
        return from_dict(Record, json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not the record of an experiment ({error})") from error


def _check_same(folder: Path, then: Record, now: Record) -> None:
    """More seeds may be asked for; anything else is another experiment."""
    for key in ("data", "minutes", "smoke"):
        old, new = getattr(then, key), getattr(now, key)
        if old != new:
            raise ConfigError(
                f"{folder} holds an experiment with {key} {old}, not {new}; continue it: "
                f"{then.command}, or choose another --out"
            )
    old_spec, new_spec = (_comparable(record) for record in (then, now))
    if old_spec != new_spec:
        raise ConfigError(
            f"{folder} holds experiment {then.experiment.name!r} with other settings; "
            f"choose another --out"
        )


def _comparable(record: Record) -> dict[str, Any]:
    """What decides the trainings: words and the number of seeds may change."""
    spec = json.loads(json.dumps(to_dict(record.experiment)))
    for key in ("question", "paper", "title", "seeds", "margin", "minutes", "axis"):
        spec.pop(key)
    return dict(spec)


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
    """The command line that begins or continues an experiment."""
    words = ["vitlab", "experiment", what, "--out", str(out)]
    wanted = None if arms is None else ",".join(arms)
    given = {"--data": data, "--seeds": seeds, "--minutes": minutes, "--arms": wanted}
    for name, value in given.items():
        if value is not None:
            words += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, *(["--smoke"] if smoke else [])])
