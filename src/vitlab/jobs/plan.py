"""The plan of a training run, its folder, and the command that repeats it.

`config.json` in the folder of a run is its plan, `survey.json` the survey of its image files;
resuming reads both and decides nothing anew. The process that works in the folder holds `.lock`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import flat, from_dict, parse_json, to_dict
from vitlab.data.datasets import Data, absolute
from vitlab.data.images import Survey
from vitlab.errors import ConfigError
from vitlab.io.files import locked, write_json
from vitlab.jobs.start import Start
from vitlab.machine.world import ALONE, World, by_first, launched
from vitlab.models.config import ViTConfig
from vitlab.models.variants import ModelConfig, configure
from vitlab.training.config import TrainConfig
from vitlab.training.recipes.from_scratch import pretraining

LOCK, SURVEY = ".lock", "survey.json"
LEFTOVER = re.compile(
    r"\..+\.(json|jsonl|html|onnx|png|safetensors|svg)\.[a-z0-9_]{8}(\.tmp)?"
    r"|\.(step-\d{8,}|best)\.([a-z0-9_]{8}|old)\.tmp"
)
"""Temporary files that `io.files.replacing` leaves when its process is killed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All decisions about a run, made before step 1: `config.json` of its folder."""

    recipe: str
    data: str
    train: TrainConfig
    model: dict[str, Any]
    """The model's whole configuration."""
    steps: int
    """Number of updates; 0: not decided yet."""
    command: str
    commit: str | None = None
    request: str = ""
    """Command without the settings that were found for the machine; empty: not known."""
    licence: str | None = None
    """Licence of the trained weights; None: not stated."""
    start: Start | None = None
    """Pretrained weights that the run starts from; None: random weights."""
    threads: int | None = None
    """CPU threads of the run; None: written by an older version, which did not store them."""
    version: str = __version__

    @property
    def deciding(self) -> dict[str, Any]:
        """Fields besides `train` that the trained weights depend on; paths may change."""
        start = {} if self.start is None else to_dict(self.start)
        return {
            "model": self.model,
            "start": {k: v for k, v in start.items() if k not in ("weights", "teacher")},
        }


def model_config(plan: Plan) -> ModelConfig:
    """Config of the plan's model."""
    if plan.start is not None:
        return from_dict(ViTConfig, plan.model)
    return from_dict(type(configure(plan.train.model)), plan.model)


def plan_path(run: Path) -> Path:
    """Path of the plan of a run."""
    return run / "config.json"


def read_plan(run: Path) -> Plan:
    """Read the plan of a run."""
    path = plan_path(run)
    if not path.is_file():
        raise ConfigError(f"{run}: no run to resume (no config.json in it)")
    try:
        return from_dict(Plan, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not the plan of a run ({error})") from error


def write_plan(run: Path, plan: Plan) -> None:
    """Write the plan of a run atomically."""
    write_json(plan_path(run), to_dict(plan))


def read_survey(run: Path) -> Survey | None:
    """Read the survey of the image files of a run; None if there is none."""
    path = run / SURVEY
    if not path.exists():
        return None
    try:
        return from_dict(Survey, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: damaged ({error}); remove it to look again") from error


def write_survey(run: Path, survey: Survey | None) -> None:
    """Write the survey of the image files atomically, or remove an old one."""
    if survey is None:
        (run / SURVEY).unlink(missing_ok=True)
    else:
        write_json(run / SURVEY, to_dict(survey))


def read_run(run: Path, world: World) -> tuple[Plan, Survey | None]:
    """Plan and survey of a run, read by the first process."""
    if world.size == 1:
        return read_plan(run), read_survey(run)

    def read() -> tuple[dict[str, Any], dict[str, Any] | None]:
        found = read_survey(run)
        return to_dict(read_plan(run)), None if found is None else to_dict(found)

    plan, survey = by_first(read, world)
    return from_dict(Plan, plan), None if survey is None else from_dict(Survey, survey)


def continues(run: Path, request: str, world: World) -> bool:
    """True if a launcher started again the command that began the run in this folder.

    Launchers restart processes, and schedulers requeue jobs, with the command they had.
    """
    if not launched() or not request:
        return False
    return by_first(lambda: plan_path(run).is_file() and read_plan(run).request == request, world)


def check_new(run: Path) -> None:
    """Raise if a new run cannot be written to this folder."""
    if plan_path(run).exists():
        raise ConfigError(f"{run} holds a run; continue it with --resume, or choose another --out")
    if run.exists() and not run.is_dir():
        raise ConfigError(f"{run} is a file; choose a folder for --out")
    if run.exists() and any(not _early_file(path) for path in run.iterdir()):
        raise ConfigError(f"{run} is not empty and holds no run; choose another --out")
    above = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ConfigError(f"{run} cannot be made: {above} cannot be written; choose another --out")


def _early_file(path: Path) -> bool:
    """True if a run that ended before its first step may have left this file."""
    return path.name in (LOCK, SURVEY) or bool(LEFTOVER.fullmatch(path.name))


@contextmanager
def working_in(run: Path, world: World = ALONE) -> Iterator[None]:
    """Lock the folder of a run, and remove temporary files of processes that were killed.

    Of several processes, the first does.
    """

    def refuse() -> None:
        raise ConfigError(f"{run}: another process is working on this run; let it end, or end it")

    def enter() -> None:
        run.mkdir(parents=True, exist_ok=True)
        lock.enter_context(locked(run / LOCK, refuse))
        for folder in (run, run / "checkpoints", run / "bundle"):
            for path in folder.glob(".*"):
                if LEFTOVER.fullmatch(path.name) and path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif LEFTOVER.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    with ExitStack() as lock:
        by_first(enter, world)
        yield


def resume_command(run: Path) -> str:
    """Command that continues an interrupted run."""
    plan, verb = read_plan(run), "train"
    if plan.start is not None:
        verb = "finetune"
    elif plan.train.objective is not None:
        verb = "pretrain"
    return shlex.join(["vitlab", verb, "--resume", "--out", str(run)])


def current_commit() -> str | None:
    """Commit of this package, if it is imported from a checkout of its repository."""
    here = Path(__file__)
    try:
        if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
            return None
        return _git(here.parent, "rev-parse", "HEAD") or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def _git(folder: Path, *words: str) -> str | None:
    """Output of git; None if it fails."""
    found = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, timeout=5, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else None


# The command line that repeats a run.

OPTIONS = frozenset({"batch_size", "seed", "balance", "workers"})
"""Settings with a command-line option of their own."""


def exact_command(words: Sequence[str], changes: Mapping[str, Any]) -> str:
    """Command line that repeats a run: `vitlab`, these words, and the changes as options."""
    return shlex.join(["vitlab", *words, *_as_options(changes)])


def request_for(
    recipe: str | TrainConfig,
    data: Data | None,
    folder: Path,
    changes: Mapping[str, Any],
    find_lr: bool,
) -> str:
    """Command that begins a run, from its arguments; empty for images in memory."""
    if not isinstance(data, str | os.PathLike) or not os.fspath(data):
        return ""
    own = {} if isinstance(recipe, str) else dict(flat(to_dict(recipe)))
    words = ["train", recipe if isinstance(recipe, str) else "settings", "--data", absolute(data)]
    options = ["--out", str(folder), *(["--find-lr"] if find_lr else [])]
    return exact_command([*words, *options], {**own, **changes})


def _as_options(changes: Mapping[str, Any]) -> Iterator[str]:
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


def pretraining_changes(config: TrainConfig, objective: str) -> dict[str, Any]:
    """Changes that turn an objective's recipe into this config.

    The shape in the recipe is for its own model alone.
    """
    base = pretraining(objective)
    if config.model == base.model and base.changes.items() <= config.changes.items():
        return changes_from(config, base)
    base = pretraining(objective, model=config.model)
    return {"model": config.model, **changes_from(config, base)}


def changes_from(config: TrainConfig, base: TrainConfig) -> dict[str, Any]:
    """Changes that turn one config into another."""
    usual = dict(flat(to_dict(base)))
    found = {
        key: value
        for key, value in flat(to_dict(config))
        if key not in usual or usual[key] != value
    }
    return {
        f"model.{key.removeprefix('changes.')}" if key.startswith("changes.") else key: value
        for key, value in found.items()
    }
