"""`vitlab train`: from a recipe and data to a bundle and a report."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab.config import flat, override, parse, to_dict
from vitlab.data.datasets import DataSource, open_data
from vitlab.data.sources.unlabelled import open_unlabelled
from vitlab.data.survey import looking, recalling
from vitlab.errors import ConfigError, VitlabError
from vitlab.jobs.run import Job, Watcher, model_config
from vitlab.jobs.run_folder import (
    Plan,
    check_new,
    current_commit,
    exact_command,
    plan_path,
    read_plan,
    read_survey,
    working_in,
)
from vitlab.jobs.run_machine import stored_threads
from vitlab.jobs.run_result import Run
from vitlab.models.build import configure
from vitlab.models.config import ViTConfig
from vitlab.registry import DATASETS
from vitlab.training.config import TrainConfig
from vitlab.training.recipes.from_scratch import pretraining
from vitlab.training.recipes.from_scratch import recipe as recipe_named

DEFAULT, CUSTOM = "default", "custom"
"""Names of recipes: where none is given, and where settings are given instead of a name."""


def train(
    recipe: str | TrainConfig = DEFAULT,
    *,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    download: bool = False,
    licence: str | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Train a model, keep the best of it, and write what it is worth to `out`.

    `changes` are dotted fields of `TrainConfig`; `model.FIELD` is a field of the model's config.
    `batch_size` may be "auto": the recipe's, or the largest power of two below it that fits.
    `licence` is that of the weights to come, such as `CC-BY-4.0`: their model card states it.
    """
    folder, watcher, wanted = Path(out), watcher or Watcher(), dict(changes or {})
    auto, given = take_auto(wanted)
    known = None
    if resume:
        if licence is not None:
            raise ConfigError("a resumed run keeps the licence it was begun with; leave it out")
        plan, known = read_plan(folder), read_survey(folder)
        _check_resumed(folder, plan, recipe, data, wanted)
        opener = open_data if plan.train.objective is None else open_unlabelled
        with recalling(known):
            source = opener(plan.data, download=download, channels=_channels(plan, folder))
    else:
        check_new(folder)
        labelled = settings_for(recipe, given).objective is None
        with looking(watcher.files):
            data, source = open_new(data, download=download, changes=wanted, labelled=labelled)
        plan = replace(decide(recipe, data, source, folder, given), licence=licence)
    with stored_threads(plan.threads):
        with looking(watcher.files):
            job = Job.prepare(
                plan, folder, source, known=known, watcher=watcher, auto=auto and not resume
            )
        for note in (*source.told, *job.split_notes):
            watcher.note(note)
        with working_in(folder):
            return job.run(watcher)


def _channels(plan: Plan, folder: Path) -> int:
    """Channels of the images of a run that goes on."""
    try:
        return model_config(plan).channels
    except VitlabError as error:
        raise ConfigError(f"{plan_path(folder)}: model: {error}") from error


def open_new(
    data: str | os.PathLike[str] | None,
    *,
    download: bool,
    changes: Mapping[str, Any],
    labelled: bool = True,
) -> tuple[str, DataSource]:
    """What a new run learns from, and its name, by which it can be resumed from anywhere."""
    if data is None or not os.fspath(data):
        raise ConfigError("no data; pass --data NAME, FOLDER or CSV (vitlab data list shows names)")
    opener = open_data if labelled else open_unlabelled
    source = opener(os.fspath(data), download=download, channels=channels_of(changes))
    return _name_of(data), source


def _name_of(data: str | os.PathLike[str]) -> str:
    """A dataset's name, or where the images are."""
    given = os.fspath(data)
    return given if given in DATASETS else os.path.abspath(os.path.expanduser(given))


def take_auto(changes: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether a batch size is to be found, and the other changes."""
    auto = changes.get("batch_size") == "auto"
    return auto, {k: v for k, v in changes.items() if not (auto and k == "batch_size")}


def split_changes(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Changes of the run's settings, and of the model's."""
    of_model = {key[6:]: value for key, value in changes.items() if key.startswith("model.")}
    of_run = {key: value for key, value in changes.items() if not key.startswith("model.")}
    return of_run, of_model


def channels_of(changes: Mapping[str, Any]) -> int | None:
    """How many channels images are to be read with, where somebody says it."""
    found = changes.get("model.channels")
    return parse(ViTConfig, "channels", found) if isinstance(found, str) else found


def _check_resumed(
    folder: Path,
    plan: Plan,
    recipe: str | TrainConfig,
    data: str | os.PathLike[str] | None,
    changes: Mapping[str, Any],
) -> None:
    """Refuse what a run that goes on would ignore.

    Its own recipe and data may be named again; settings of one's own only as the run has them.
    """
    if changes:
        raise ConfigError(f"a resumed run keeps {min(changes)} as it was begun; leave it out")
    if isinstance(recipe, str):
        same, named = recipe in (DEFAULT, plan.recipe), recipe
    else:
        given = recipe
        if recipe.precision == "auto":
            given = replace(recipe, precision=plan.train.precision)
        same, named = to_dict(given) == to_dict(plan.train), "this one"
    if not same:
        raise ConfigError(f"{folder} is a run of recipe {plan.recipe}, not {named}; leave it out")
    if data is not None and plan.data != _name_of(data):
        raise ConfigError(f"{folder} is a run on {plan.data}, not {os.fspath(data)}; leave it out")


def settings_for(recipe: str | TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The settings of a new run."""
    base = recipe_named(recipe) if isinstance(recipe, str) else recipe
    return override(base, split_changes(changes)[0])


def decide(
    recipe: str | TrainConfig,
    data: str,
    source: DataSource,
    folder: Path,
    changes: dict[str, Any],
) -> Plan:
    """The plan of a new run, but for the number of steps, which the loader tells."""
    config, of_model = settings_for(recipe, changes), split_changes(changes)[1]
    classes = len(source.labels) if config.objective is None else 0
    shape: dict[str, Any] = {"classes": classes, "channels": source.channels}
    if source.image_size is not None:
        shape["image_size"] = source.image_size
    model = override(configure(config.model, **shape | config.changes), of_model)
    for field in ("classes", "channels"):
        if getattr(model, field) != shape[field]:
            told = source.name if classes else f"what is learnt from {source.name} without labels"
            raise ConfigError(f"model.{field} {getattr(model, field)}; {told} has {shape[field]}")
    verb: tuple[str, ...]
    if isinstance(recipe, str):
        name, verb, own = recipe, ("train", recipe), {}
    elif config.objective is None:
        name, verb, own = CUSTOM, ("train", DEFAULT), _differences(recipe, recipe_named(DEFAULT))
    else:
        name, verb = config.objective, ("pretrain", "--objective", config.objective)
        own = _of_pretraining(recipe, config.objective)
    return Plan(
        recipe=name,
        data=data,
        train=config,
        model=to_dict(model),
        steps=0,
        command=exact_command(verb, data, folder, own | changes),
        commit=current_commit(),
    )


def _of_pretraining(config: TrainConfig, objective: str) -> dict[str, Any]:
    """What makes settings of an objective's recipe; the shape in it is for its own model alone."""
    base = pretraining(objective)
    if config.model == base.model and base.changes.items() <= config.changes.items():
        return _differences(config, base)
    base = pretraining(objective, model=config.model)
    return {"model": config.model, **_differences(config, base)}


def _differences(config: TrainConfig, base: TrainConfig) -> dict[str, Any]:
    """What makes a recipe of another, as changes."""
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
