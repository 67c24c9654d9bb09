"""The command line that repeats a run."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitlab.config import flat, to_dict
from vitlab.data.datasets import Data, absolute
from vitlab.training.config import TrainConfig
from vitlab.training.recipes.from_scratch import pretraining

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
