"""The folder of a run: what was decided before step 1, so that resuming decides nothing anew.

`config.json` is the plan, `survey.json` what was found in the files of images; whoever works in the
folder holds `.lock`.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import from_dict, parse_json, to_dict
from vitlab.data.images import Survey
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import locked, write_json
from vitlab.training.config import TrainConfig

LOCK, SURVEY = ".lock", "survey.json"
LEFTOVER = re.compile(r"\..+\.(json|jsonl|html|onnx|png|safetensors|svg)\.[a-z0-9_]{8}(\.tmp)?")
"""What `files.replacing` leaves behind when its process is killed."""
OPTIONS = frozenset({"batch_size", "seed", "balance"})
"""Settings that have an option of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Weights that a run begins with, how images are prepared for them, and who helps."""

    weights: str
    preprocessing: Preprocessing
    new_head: bool = False
    """Every class starts at zero, also those that the weights know by name."""
    teacher: str | None = None
    teacher_share: float = 0.5
    """Of each target that the teacher decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run as it was decided: `config.json` of its folder."""

    recipe: str
    data: str
    train: TrainConfig
    model: dict[str, Any]
    """The model's whole configuration."""
    steps: int
    """Updates that the budget was found to buy."""
    command: str
    commit: str | None = None
    licence: str | None = None
    """Of the weights to come; None where nobody stated it."""
    start: Start | None = None
    """Weights that the run begins with; None: fresh ones."""
    threads: int | None = None
    """Threads that the run computes with; None: an older run, which did not store them."""
    version: str = __version__

    @property
    def deciding(self) -> dict[str, Any]:
        """What its weights depend on beside its settings; files may have moved meanwhile."""
        start = {} if self.start is None else to_dict(self.start)
        return {
            "model": self.model,
            "start": {k: v for k, v in start.items() if k not in ("weights", "teacher")},
        }


def plan_path(run: Path) -> Path:
    """Where the plan of a run is."""
    return run / "config.json"


def read_plan(run: Path) -> Plan:
    """The plan of a run that was begun."""
    path = plan_path(run)
    if not path.is_file():
        raise ConfigError(f"{run}: no run to resume (no config.json in it)")
    try:
        return from_dict(Plan, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not the plan of a run ({error})") from error


def write_plan(run: Path, plan: Plan) -> None:
    """Store the plan, whole or not at all."""
    write_json(plan_path(run), to_dict(plan))


def check_new(run: Path) -> None:
    """Refuse to begin a run where one was begun, or where something else is."""
    if plan_path(run).exists():
        raise ConfigError(f"{run} holds a run; continue it with --resume, or choose another --out")
    if run.exists() and not run.is_dir():
        raise ConfigError(f"{run} is a file; choose a folder for --out")
    if run.exists() and any(not _ours(path) for path in run.iterdir()):
        raise ConfigError(f"{run} is not empty and holds no run; choose another --out")
    above = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ConfigError(f"{run} cannot be made: {above} cannot be written; choose another --out")


def _ours(path: Path) -> bool:
    """Whether a file may lie in a folder in which no run was begun: a run that died early."""
    return path.name in (LOCK, SURVEY) or bool(LEFTOVER.fullmatch(path.name))


@contextmanager
def working_in(run: Path) -> Iterator[None]:
    """Keep other processes out of the folder, and clear away what a killed one left behind."""
    run.mkdir(parents=True, exist_ok=True)

    def refuse() -> None:
        raise ConfigError(f"{run}: another process is working on this run; let it end, or end it")

    with locked(run / LOCK, refuse):
        for folder in (run, run / "checkpoints", run / "bundle"):
            for path in folder.glob(".*"):
                if LEFTOVER.fullmatch(path.name):
                    _remove(path)
        yield


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_survey(run: Path) -> Survey | None:
    """What was found in the files of images when the run began, if somebody looked."""
    path = run / SURVEY
    if not path.exists():
        return None
    try:
        return from_dict(Survey, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: damaged ({error}); remove it to look again") from error


def write_survey(run: Path, survey: Survey | None) -> None:
    """Store what was found, whole or not at all, or that nobody looked."""
    if survey is None:
        (run / SURVEY).unlink(missing_ok=True)
    else:
        write_json(run / SURVEY, to_dict(survey))


def forget_run(run: Path) -> None:
    """Remove what a run wrote that made no step, and its folder if nothing else is in it."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    shutil.rmtree(run / "tensorboard", ignore_errors=True)
    for path in (run / "metrics.jsonl", run / SURVEY, run / LOCK, plan_path(run)):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        run.rmdir()


def exact_command(verb: Sequence[str], data: str, out: Path, changes: Mapping[str, Any]) -> str:
    """The command line that repeats a run; `verb` is the command with its recipe."""
    words = ["vitlab", *verb, "--data", data, "--out", str(out)]
    return shlex.join([*words, *written(changes)])


def written(changes: Mapping[str, Any]) -> Iterator[str]:
    """Changes as words of a command line."""
    rest = dict(changes)
    if {"budget", "budget_in"} <= rest.keys():
        yield f"--{rest.pop('budget_in')}"
        yield f"{float(rest.pop('budget')):.12g}"
    for key, value in rest.items():
        if key in OPTIONS:
            yield f"--{key.replace('_', '-')}"
            yield str(value)
            continue
        yield "--set"
        yield f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def current_commit() -> str | None:
    """The commit of this package, if it is imported from a checkout of it."""
    here = Path(__file__)
    try:
        if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
            return None
        return _git(here.parent, "rev-parse", "HEAD") or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def _git(folder: Path, *words: str) -> str | None:
    """What git says; None where it fails."""
    found = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, timeout=5, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else None


def resume_command(run: Path) -> str:
    """How an interrupted run is continued."""
    return shlex.join(["vitlab", "train", "--resume", "--out", str(run)])
