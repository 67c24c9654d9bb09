"""`vitlab train` and `vitlab pretrain`: from a recipe and data to a bundle and a report.

`train` makes or reads a plan, `TrainingRun.prepare` opens everything it names, and `carry_out`
trains, chooses weights and writes the result.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitlab.config import override, parse, to_dict
from vitlab.data.datasets import Data, DataSource, SurveyFiles, absolute, open_data
from vitlab.data.images import Survey, survey_of
from vitlab.data.sources.folder import open_unlabelled
from vitlab.errors import ConfigError, Diverged, NotFinite, OutOfMemory, VitlabError
from vitlab.jobs.plan import (
    LOCK,
    SURVEY,
    Plan,
    changes_from,
    check_new,
    continues,
    current_commit,
    exact_command,
    model_config,
    plan_path,
    pretraining_changes,
    read_run,
    request_for,
    working_in,
    write_plan,
    write_survey,
)
from vitlab.jobs.pretrain_result import finish_pretraining
from vitlab.jobs.processes import share_config, survey_once
from vitlab.jobs.run_result import (
    RunResult,
    choose_weights,
    ending_seconds,
    finish,
    helped,
    stopped_early,
    tested_images,
)
from vitlab.jobs.training_run import TrainingRun, Watcher
from vitlab.machine.device import best_device, cores, free_bytes, is_out_of_memory
from vitlab.machine.world import World, by_first, open_world
from vitlab.models.config import ViTConfig
from vitlab.models.variants import configure
from vitlab.nn.lora import merge_lora
from vitlab.training.batch_size import out_of_memory
from vitlab.training.budget import steps_for
from vitlab.training.config import TrainConfig
from vitlab.training.find_lr import check_range_test
from vitlab.training.loggers import PACKAGES
from vitlab.training.loop import fit
from vitlab.training.recipes.from_scratch import pretraining
from vitlab.training.recipes.from_scratch import recipe as recipe_named
from vitlab.training.recipes.photographs import photograph_size
from vitlab.training.teacher import DistillationLoader

DEFAULT, CUSTOM = "default", "custom"
"""Names of recipes: if none is given, and if settings are given instead of a name."""
MORE_PROCESSES = (
    "--set recompute_activations=true, --set accumulate=N and more processes take less for the "
    "same batch"
)
AUTOMATIC = ("batch_size", "workers")
"""Settings that may be "auto": `TrainingRun.prepare` finds them."""

log = logging.getLogger(__name__)


def train(
    recipe: str | TrainConfig = DEFAULT,
    *,
    data: Data | None = None,
    out: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    find_lr: bool = False,
    resume: bool = False,
    download: bool = False,
    licence: str | None = None,
    watcher: Watcher | None = None,
) -> RunResult:
    """Train a model, and write its best weights, their evaluation and a report to `out`.

    `changes` are dotted fields of `TrainConfig`; `model.FIELD` is a field of the model's config.
    `batch_size` may be "auto": the recipe's, or the largest power of two below it that fits; so may
    `workers`: by the number of cores. With `find_lr` a range test finds the learning rate.
    `licence` is that of the trained weights, such as `CC-BY-4.0`: their model card states it.
    """
    folder, watcher, wanted = Path(out), watcher or Watcher(), dict(changes or {})
    world = open_world()
    request = "" if resume else request_for(recipe, data, folder, wanted, find_lr)
    if continues(folder, request, world):
        watcher.note(f"the run in {folder} continues: this command began it")
        return train(data=data, out=out, resume=True, download=download, watcher=watcher)
    if resume:
        for name, value in (("licence", licence), ("find_lr", find_lr or None)):
            if value is not None:
                raise ConfigError(f"a resumed run keeps {name} as it was begun; leave it out")
        plan, source, known = _reopen(folder, recipe, data, wanted, download, watcher, world)
        auto, _ = take_auto(wanted)
    else:
        by_first(lambda: check_new(folder), world)
        if find_lr:
            check_range_test(wanted)
        known, (auto, given) = None, take_auto(wanted)
        labelled = settings_for(recipe, given).objective is None
        survey = survey_once(world, watch=watcher.files)
        data, source = open_new(
            data, download=download, changes=wanted, survey=survey, labelled=labelled
        )
        if recipe == DEFAULT:
            size, note = photograph_size(source.open_train(), settings_for(recipe, given), given)
            if size is not None and note is not None:
                given = {**given, "model.image_size": size}
                watcher.note(note)
                if "batch_size" not in given and world.size == 1 and free_bytes() is not None:
                    auto |= {"batch_size"}  # larger images than the recipe's may not fit
        plan = replace(decide(recipe, data, source, folder, given), licence=licence)
        if find_lr:
            plan = replace(plan, command=f"{plan.command} --find-lr")
        plan = share_config(replace(plan, request=request), world)
    with stored_threads(plan.threads):
        run = TrainingRun.prepare(
            plan, folder, source, known=known, watcher=watcher, auto=auto, world=world
        )
        for note in (*source.all_notes, *run.split_notes):
            watcher.note(note)
        with working_in(folder, world):
            if find_lr:
                run.find_lr()
            return carry_out(run)


def _reopen(
    folder: Path,
    recipe: str | TrainConfig,
    data: Data | None,
    changes: Mapping[str, Any],
    download: bool,
    watcher: Watcher,
    world: World,
) -> tuple[Plan, DataSource, Survey | None]:
    """Plan, data and survey of a resumed run; what its weights do not depend on may change."""
    plan, known = read_run(folder, world)
    free = {name: changes[name] for name in ("workers", "parallel") if name in changes}
    _check_resumed(folder, plan, recipe, data, {k: changes[k] for k in changes.keys() - free})
    found = {name: value for name, value in free.items() if value != "auto"}
    plan = replace(plan, train=override(plan.train, found))
    opener = open_data if plan.train.objective is None else open_unlabelled
    survey = survey_once(world, known=known, watch=watcher.files)
    channels = _channels(plan, folder)
    again = plan.data if data is None or isinstance(data, str | os.PathLike) else data
    source = opener(again, download=download, channels=channels, survey=survey)
    if again is data and source.name != plan.data:
        raise ConfigError(f"{folder} is a run on {plan.data}, not {source.name}")
    return plan, source, known


def pretrain(
    objective: str | None = None,
    *,
    data: Data | None = None,
    out: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    find_lr: bool = False,
    resume: bool = False,
    download: bool = False,
    licence: str | None = None,
    watcher: Watcher | None = None,
) -> RunResult:
    """Train without labels, by `masked-patch` or `mae` (None), and write the encoder to `out`.

    `data` is as in `train`, or a folder of images without classes; `changes` are dotted fields of
    `TrainConfig`, such as `mae.mask`.
    """
    model = (changes or {}).get("model")
    return train(
        objective or DEFAULT if resume else pretraining(objective, model=model),
        data=data,
        out=out,
        changes=changes,
        find_lr=find_lr,
        resume=resume,
        download=download,
        licence=licence,
        watcher=watcher,
    )


# From a prepared run to its result.


def carry_out(run: TrainingRun) -> RunResult:
    """Train, choose weights on the held-out images, and evaluate the test images once."""
    try:
        _fit(run)
        run.weights = choose_weights(run)
        if run.world.rank == 0:
            for sentence in filter(None, (stopped_early(run), helped(run))):
                run.watcher.note(sentence)
        run.gather_model()
        if run.plan.train.learns == "lora":
            merge_lora(run.model)
        run.learning.settle(run.model)
        return finish(run) if run.plan.train.objective is None else finish_pretraining(run)
    except NotFinite as error:
        raise Diverged(run.state.step, error.found) from error


def _fit(run: TrainingRun) -> None:
    """Train up to the last step, or raise with advice if memory does not suffice."""
    new, short = not run.plan.steps, False
    try:
        _store_plan(run)
        run.watcher.begin(run.plan, run.files)
        fit(
            run.plan.train,
            run.state,
            run.loader,
            steps=run.plan.steps,
            evaluate=run.evaluator(),
            files=run.files,
            watch=run.watcher.metric,
            goal=run.learning.goal,
            teacher_flops=run.loader.flops if isinstance(run.loader, DistillationLoader) else 0,
            plan=run.plan.deciding,
            first=run.knows_classes,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        short = True
    finally:
        run.loader.close()
    if short:
        # Not inside `except`: while the error exists, its frames keep the activations in memory.
        raise _out_of_memory(run, new=new)


def _store_plan(run: TrainingRun) -> None:
    """Write survey and plan; a new run gets its number of steps first."""
    new, first_process = not run.plan.steps, run.world.rank == 0
    if new:  # no other command may have begun a run meanwhile
        by_first(lambda: check_new(run.folder), run.world)
    if first_process:
        write_survey(run.folder, survey_of(run.train))
    if not new:
        return
    steps = steps_for(
        run.plan.train,
        run.state,
        run.loader,
        evaluated=0 if run.validation is None else len(run.validation),
        tested=tested_images(run),
        other=time.monotonic() - run.began + ending_seconds(run),
        first=run.knows_classes,
        loss_of=run.learning.goal.loss,
    )
    run.plan = replace(run.plan, steps=steps, threads=torch.get_num_threads())
    run.plan = share_config(run.plan, run.world)
    if first_process:
        write_plan(run.folder, run.plan)


def _out_of_memory(run: TrainingRun, *, new: bool) -> OutOfMemory:
    """Error with advice; a new run without a step is removed."""
    if run.state.step:
        return OutOfMemory(
            run.plan.train.batch_size,
            f"step {run.state.step} was the last to have it, and checkpoints are intact: "
            f"continue with --resume when other programs take less",
        )
    run.model.zero_grad(set_to_none=True)
    if new and run.world.rank == 0:
        _forget(run.folder)
    if run.world.size > 1:
        return OutOfMemory(run.plan.train.batch_size, MORE_PROCESSES)
    return out_of_memory(run.model, run.plan.train)


def _forget(run: Path) -> None:
    """Remove the files of a run without a step, and its folder if it is then empty."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    for name in PACKAGES:
        shutil.rmtree(run / name, ignore_errors=True)
    for path in (run / "metrics.jsonl", run / SURVEY, run / LOCK, plan_path(run)):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        run.rmdir()


@contextmanager
def stored_threads(threads: int | None) -> Iterator[None]:
    """Compute with the number of threads that a run began with; warn if there are fewer cores.

    On a CPU the number decides in which order products are summed up, and so the last bits.
    """
    here = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise ConfigError(f"config.json: threads {threads} is not at least 1")
    if threads is None or threads == here or best_device().type != "cpu":
        yield
        return
    if threads > cores():
        log.warning(
            "the run began with %d threads and goes on with %d: "
            "the result will not be the same bit for bit",
            *(threads, here),
        )
        yield
        return
    log.warning("the run goes on with %d threads, as it began, not with %d", threads, here)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(here)


# From the arguments of a run to its plan.


def decide(
    recipe: str | TrainConfig,
    data: str,
    source: DataSource,
    folder: Path,
    changes: dict[str, Any],
) -> Plan:
    """Plan of a new run; its number of steps is found later, with the loader."""
    config, of_model = settings_for(recipe, changes), split_changes(changes)[1]
    classes = len(source.labels) if config.objective is None else 0
    shape: dict[str, Any] = {"classes": classes, "channels": source.channels}
    if source.image_size is not None:
        shape["image_size"] = source.image_size
    # All at once: sizes may be valid together only.
    model = override(configure(config.model), {**shape, **config.changes, **of_model})
    for field in ("classes", "channels"):
        if getattr(model, field) != shape[field]:
            name = source.name if classes else f"{source.name} without labels"
            raise ConfigError(f"model.{field} {getattr(model, field)}; {name} has {shape[field]}")
    verb: tuple[str, ...]
    if isinstance(recipe, str):
        name, verb, own = recipe, ("train", recipe), {}
    elif config.objective is None:
        name, verb, own = CUSTOM, ("train", DEFAULT), changes_from(recipe, recipe_named(DEFAULT))
    else:
        name, verb = config.objective, ("pretrain", "--objective", config.objective)
        own = pretraining_changes(recipe, config.objective)
    return Plan(
        recipe=name,
        data=data,
        train=config,
        model=to_dict(model),
        steps=0,
        command=exact_command((*verb, "--data", data, "--out", str(folder)), own | changes),
        commit=current_commit(),
    )


def settings_for(recipe: str | TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Settings of a new run."""
    base = recipe_named(recipe) if isinstance(recipe, str) else recipe
    return override(base, split_changes(changes)[0])


def take_auto(changes: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, Any]]:
    """Settings that are "auto" and may be, and the other changes."""
    auto = frozenset(name for name in AUTOMATIC if changes.get(name) == "auto")
    return auto, {key: value for key, value in changes.items() if key not in auto}


def split_changes(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Changes of the run's settings, and of the model's config."""
    of_model = {key[6:]: value for key, value in changes.items() if key.startswith("model.")}
    of_run = {key: value for key, value in changes.items() if not key.startswith("model.")}
    return of_run, of_model


def channels_of(changes: Mapping[str, Any]) -> int | None:
    """Number of channels to read images with; None if `changes` do not give it."""
    found = changes.get("model.channels")
    return parse(ViTConfig, "channels", found) if isinstance(found, str) else found


def open_new(
    data: Data | None,
    *,
    download: bool,
    changes: Mapping[str, Any],
    survey: SurveyFiles,
    labelled: bool = True,
) -> tuple[str, DataSource]:
    """Open the data of a new run; the name returned is valid in any working directory."""
    if data is None or data == "":
        raise ConfigError("no data; pass --data NAME, FOLDER or CSV (vitlab data list shows names)")
    opener = open_data if labelled else open_unlabelled
    channels = channels_of(changes)
    source = opener(data, download=download, channels=channels, survey=survey)
    return _name_of(data, source), source


def _name_of(data: Data, source: DataSource) -> str:
    """Name of a dataset, absolute path of the images, or digest of images in memory."""
    if not isinstance(data, str | os.PathLike):
        return source.name
    return absolute(data)


def _channels(plan: Plan, folder: Path) -> int:
    """Channels of the images of a resumed run."""
    try:
        return model_config(plan).channels
    except VitlabError as error:
        raise ConfigError(f"{plan_path(folder)}: model: {error}") from error


def _check_resumed(
    folder: Path,
    plan: Plan,
    recipe: str | TrainConfig,
    data: Data | None,
    changes: Mapping[str, Any],
) -> None:
    """Raise if an argument differs from the plan of the resumed run.

    Its own recipe and data may be repeated, and a `TrainConfig` that is equal to its settings.
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
    if isinstance(data, str | os.PathLike) and plan.data != absolute(data):
        raise ConfigError(f"{folder} is a run on {plan.data}, not {os.fspath(data)}; leave it out")
