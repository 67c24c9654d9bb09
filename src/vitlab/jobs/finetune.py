"""`vitlab finetune`: anybody's weights and a folder of images become a classifier."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from vitlab.config import override, to_dict
from vitlab.data.class_counts import count_images
from vitlab.data.datasets import DataSource
from vitlab.data.survey import looking
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs.any_model import title_of
from vitlab.jobs.card import variant_name
from vitlab.jobs.find_rate import check_plots, draw_trials
from vitlab.jobs.run import Job, Watcher
from vitlab.jobs.run_folder import (
    Plan,
    Start,
    check_new,
    current_commit,
    read_plan,
    working_in,
    written,
)
from vitlab.jobs.run_result import Run
from vitlab.jobs.run_start import absolute, open_teacher, open_weights_for
from vitlab.jobs.train import open_new, split_changes, take_auto, train
from vitlab.machine.device import best_device
from vitlab.models.config import Size, pair
from vitlab.models.vit import VisionTransformer
from vitlab.training.config import TrainConfig
from vitlab.training.find_rate import find_rate as run_trials
from vitlab.training.find_rate import suggested_rate
from vitlab.training.loop import RunFiles
from vitlab.training.recipes import finetune as recipes

RECIPE = "finetune"


def finetune(
    start: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str],
    image_size: Size | None = None,
    freeze: int | None = None,
    lora: int | None = None,
    linear_probe: bool = False,
    paper: bool = False,
    new_head: bool = False,
    find_lr: bool = False,
    sam: float | None = None,
    teacher: str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    download: bool = False,
    licence: str | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Fine-tune a model on images; what was chosen for them, and why, goes to `watcher.note`.

    `start` is a weight file, a bundle, a run, or the name of fetched weights; `changes` are dotted
    fields of `TrainConfig`, as in `train`; `licence` is that of the weights to come, else that of
    `start`.
    """
    watcher = watcher or Watcher()
    options: dict[str, Any] = {
        "image_size": image_size,
        "freeze": freeze,
        "lora": lora,
        "linear_probe": linear_probe,
        "paper": paper,
        "new_head": new_head,
        "find_lr": find_lr,
        "sam": sam,
        "teacher": None if teacher is None else absolute(teacher),
    }
    folder, wanted = Path(out), dict(changes or {})
    if resume:
        _check_resumed(folder, start, options)
        return train(
            data=data,
            out=out,
            changes=wanted,
            resume=True,
            download=download,
            licence=licence,
            watcher=watcher,
        )
    if start is None:
        raise ConfigError("no weights; pass --from FILE, BUNDLE, RUN or NAME (vitlab weights list)")
    check_new(folder)
    if find_lr:
        check_plots()
    _check(options, wanted)
    with looking(watcher.files):
        data, source = open_new(data, download=download, changes=wanted)
    auto, given = take_auto(wanted)
    of_run, of_model = split_changes(given)
    weights = absolute(start)
    model = open_weights_for(
        weights, source, image_size=image_size, new_head=paper or new_head, changes=of_model
    )
    with looking(watcher.files):
        name = variant_name(model.config) or title_of(weights)
        config, reasons = _settings(model, source, options, of_run, name)
    begin = Start(
        weights=weights,
        preprocessing=_preprocessing(model, source),
        new_head=paper or new_head,
        teacher=options["teacher"],
    )
    if begin.teacher is not None:
        open_teacher(begin.teacher, source, begin.preprocessing, best_device())
    plan = Plan(
        recipe=RECIPE,
        data=data,
        train=config,
        model=to_dict(model.config),
        steps=0,
        command=_command(weights, data, folder, options, given),
        commit=current_commit(),
        licence=licence or model.source.licence,
        start=begin,
    )
    with looking(watcher.files):
        job = Job.prepare(plan, folder, source, watcher=watcher, auto=auto)
    known = _known(model, len(source.labels))
    for note in (*source.told, *reasons, *known, *job.split_notes):
        watcher.note(note)
    with working_in(folder):
        if find_lr:
            job, watcher = _with_found_rate(job, watcher)
        return job.run(watcher)


def _check_resumed(
    folder: Path, start: str | os.PathLike[str] | None, options: Mapping[str, Any]
) -> None:
    """Refuse what a run that goes on would ignore; its own weights may be named again."""
    for name, value in options.items():
        if value not in (None, False):
            raise ConfigError(f"a resumed run keeps {name} as it was begun; leave it out")
    begun = read_plan(folder).start
    if start is not None and (begun is None or begun.weights != absolute(start)):
        came = "no weights" if begun is None else begun.weights
        raise ConfigError(f"{folder} was begun with {came}, not {os.fspath(start)}; leave it out")


def _known(model: VisionTransformer, classes: int) -> tuple[str, ...]:
    known = model.source.known_classes
    if not known:
        return ()
    some = ", ".join(known[:3]) + (" ..." if len(known) > 3 else "")
    return (f"{len(known)} of {classes} classes are known to the weights by name ({some}): kept",)


def _preprocessing(model: VisionTransformer, source: DataSource) -> Preprocessing:
    """As the weights want it, with the data's idea of white."""
    return replace(model.source.require_preprocessing(), white=source.white)


def _check(options: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    given = [name for name in ("linear_probe", "lora", "freeze") if options[name]]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(sorted(given, reverse=True))} exclude each other")
    if "model" in changes:
        raise ConfigError(f"model {changes['model']}: the weights decide the model; leave it out")
    if options["find_lr"] and "optimizer.lr" in changes:
        raise ConfigError("find_lr and optimizer.lr: either finds or sets the rate; choose one")


def _settings(
    model: VisionTransformer,
    source: DataSource,
    options: Mapping[str, Any],
    changes: dict[str, Any],
    name: str,
) -> tuple[TrainConfig, tuple[str, ...]]:
    """The settings for this data and this model, and why; `name` is what the model is called."""
    found = situation(model, source, changes)
    config = recipes.paper() if options["paper"] else recipes.finetuning(found)
    if options["linear_probe"]:
        config = recipes.linear_probe(config)
    if options["lora"]:
        config = recipes.with_lora(config, options["lora"])
    if options["freeze"]:
        config = replace(config, frozen_blocks=options["freeze"])
    if options["sam"]:
        config = replace(config, optimizer=replace(config.optimizer, sam=options["sam"]))
    patience = config.patience
    config = override(replace(config, model=name, patience=0), changes)
    if config.hold_out and "patience" not in changes:  # nothing held out, nothing to wait for
        config = replace(config, patience=patience)
    if options["paper"]:
        return config, ("the paper's protocol: SGD from a head of zeros",)
    return config, recipes.reasons(config, found)


def situation(
    model: nn.Module, source: DataSource, changes: Mapping[str, Any]
) -> recipes.Situation:
    """What the settings depend on; the model may be one without memory."""
    wanted = {key: value for key, value in changes.items() if key == "images_per_class"}
    per_class = override(TrainConfig(), wanted).images_per_class
    classes = len(source.labels)
    counts = None if per_class else count_images(source.open_train().labels, source.labels)
    return recipes.Situation(
        images=per_class * classes if counts is None else counts.images,
        classes=classes,
        per_class_text=f"{per_class:,} per class" if counts is None else counts.per_class,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        side=min(pair(cast(Any, model).config.image_size)),
        accelerated=best_device().type != "cpu",
    )


def _with_found_rate(job: Job, watcher: Watcher) -> tuple[Job, Watcher]:
    """The job with the rate that a range test finds; `find-lr.png` shows how, once it begins."""
    watcher.note("range test: the loss while the rate grows from step to step ...")
    loss = job.aim.goal.loss
    trials = run_trials(job.state.model, job.plan.train, job.loader, loss_of=loss)
    rate = suggested_rate(trials)
    watcher.note(f"range test: rate {rate:g} (find-lr.png)")

    def begin(plan: Plan, files: RunFiles) -> None:
        draw_trials(trials, rate, files.folder / "find-lr.png")
        watcher.begin(plan, files)

    return job.with_rate(rate), replace(watcher, begin=begin)


def _command(
    weights: str,
    data: str,
    folder: Path,
    options: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> str:
    words = ["vitlab", "finetune", "--from", weights, "--data", data, "--out", str(folder)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, tuple):
            words += [flag, "x".join(map(str, value))]
        elif value:
            words += [flag, str(value)]
    return shlex.join([*words, *written(changes)])
