"""The folder of a run: what was decided before step 1, so that resuming decides nothing anew."""

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError
from vitlab.files import write_json
from vitlab.train.config import TrainConfig


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
    version: str = __version__


def plan_path(run: Path) -> Path:
    """Where the plan of a run is."""
    return run / "config.json"


def read_plan(run: Path) -> Plan:
    """The plan of a run that was begun."""
    path = plan_path(run)
    if not path.is_file():
        raise ConfigError(f"{run}: no run to resume (no config.json in it)")
    try:
        return from_dict(Plan, json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not the plan of a run ({error})") from error


def write_plan(run: Path, plan: Plan) -> None:
    """Store the plan, whole or not at all."""
    write_json(plan_path(run), to_dict(plan))


def check_new(run: Path) -> None:
    """Refuse to begin a run where one was begun, or where something else is."""
    if plan_path(run).exists():
        raise ConfigError(f"{run} holds a run; continue it with --resume, or choose another --out")
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ConfigError(f"{run} is not empty and holds no run; choose another --out")


def exact_command(recipe: str, data: str, out: Path, changes: Mapping[str, Any]) -> str:
    """The command line that repeats a run."""
    words = ["vitlab", "train", recipe, "--data", data, "--out", str(out)]
    for key, value in changes.items():
        written = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{key}={written}"]
    return shlex.join(words)


def current_commit() -> str | None:
    """The commit of the working directory, if it is a checkout."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def resume_command(run: Path) -> str:
    """How an interrupted run is continued."""
    return shlex.join(["vitlab", "train", "--resume", "--out", str(run)])
