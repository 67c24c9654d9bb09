"""`vitlab finetune`: train pretrained weights further, on images of other classes."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from vitlab.config import override, to_dict
from vitlab.data.datasets import Data, DataSource
from vitlab.data.datasets import absolute as absolute_data
from vitlab.data.images import ImageSet, count_images
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs.plan import (
    Plan,
    check_new,
    continues,
    current_commit,
    exact_command,
    read_run,
    working_in,
)
from vitlab.jobs.processes import share_config, survey_once
from vitlab.jobs.run_result import RunResult
from vitlab.jobs.start import Start, Started, absolute, open_teacher, open_weights_for
from vitlab.jobs.train import carry_out, open_new, split_changes, take_auto, train
from vitlab.jobs.training_run import TrainingRun, Watcher
from vitlab.machine.device import best_device
from vitlab.machine.world import World, by_first, open_world
from vitlab.models.config import Size, pair
from vitlab.models.variants import variant_name
from vitlab.models.vit import VisionTransformer
from vitlab.training.config import TrainConfig
from vitlab.training.find_lr import check_range_test
from vitlab.training.recipes import finetune as recipes
from vitlab.weights.fetch import fetch_named
from vitlab.weights.preparation import Stated, as_options
from vitlab.weights.resolve import title_of

RECIPE = "finetune"


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneOptions:
    """Options of a fine-tuning besides the settings of the run, in the order of its command."""

    image_size: Size | None = None
    freeze: int | None = None
    """First encoder blocks that are not trained."""
    lora: int | None = None
    """Rank of low-rank updates; None: all weights are trained."""
    linear_probe: bool = False
    paper: bool = False
    """Fine-tune as the ViT paper does."""
    new_head: bool = False
    find_lr: bool = False
    sam: float | None = None
    teacher: str | None = None
    preprocessing: Stated | None = None
    """Preprocessing of the weights; None: their own."""

    @property
    def zero_head(self) -> bool:
        """True if the whole head starts at zero."""
        return self.paper or self.new_head

    def given(self) -> Iterator[tuple[str, object]]:
        """Name and value of each option that was given."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in (None, False):  # 0 is the same as not given
                yield field.name, value

    def check(self, changes: Mapping[str, Any]) -> None:
        """Raise if options exclude each other, or one of the changes."""
        found = [
            name
            for name, value in (
                ("linear_probe", self.linear_probe),
                ("lora", self.lora),
                ("freeze", self.freeze),
            )
            if value
        ]
        if len(found) > 1:
            raise ConfigError(f"{' and '.join(sorted(found, reverse=True))} exclude each other")
        if "model" in changes:
            raise ConfigError(
                f"model {changes['model']}: the weights decide the model; leave it out"
            )


def finetune(
    start: str | os.PathLike[str] | None = None,
    *,
    data: Data | None = None,
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
    preprocessing: Stated | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    download: bool = False,
    licence: str | None = None,
    watcher: Watcher | None = None,
) -> RunResult:
    """Fine-tune a model on images; the chosen settings and the reasons go to `watcher.note`.

    `start` is a weight file, a bundle, a run, or the name of fetched weights; `changes` are dotted
    fields of `TrainConfig`, as in `train`; `preprocessing` is that of `start` as in `load_weights`,
    where it does not say it; `licence` is that of the trained weights, by default that of `start`.
    """
    watcher, folder, wanted = watcher or Watcher(), Path(out), dict(changes or {})
    world = open_world()
    options = FinetuneOptions(
        image_size=image_size,
        freeze=freeze,
        lora=lora,
        linear_probe=linear_probe,
        paper=paper,
        new_head=new_head,
        find_lr=find_lr,
        sam=sam,
        teacher=None if teacher is None else absolute(teacher),
        preprocessing=preprocessing,
    )
    if resume:
        begun = read_run(folder, world)[0].start
        _check_resumed(folder, begun, start, options)
        models = () if begun is None else (begun.weights, begun.teacher)
        _fetch(download, models, watcher)
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
    request = ""
    if isinstance(data, str | os.PathLike) and os.fspath(data):
        request = _command(absolute(start), absolute_data(data), folder, options, wanted)
    if continues(folder, request, world):
        watcher.note(f"the run in {folder} continues: this command began it")
        return train(data=data, out=out, resume=True, download=download, watcher=watcher)
    by_first(lambda: check_new(folder), world)
    if find_lr:
        check_range_test(wanted)
    options.check(wanted)
    _fetch(download, (start, options.teacher), watcher)
    survey = survey_once(world, watch=watcher.files)
    data, source = open_new(data, download=download, changes=wanted, survey=survey)
    run = _prepare(
        absolute(start),
        data,
        source,
        folder,
        options=options,
        changes=wanted,
        licence=licence,
        request=request,
        watcher=watcher,
        world=world,
    )
    with working_in(folder, world):
        if find_lr:
            run.find_lr()
        return carry_out(run)


def _fetch(
    download: bool, models: Iterable[str | os.PathLike[str] | None], watcher: Watcher
) -> None:
    """Get missing weights that are given by name, if that is wanted."""
    if download:
        for model in models:
            fetch_named(model, _Notes(watcher))


@dataclass(frozen=True)
class _Notes:
    """Progress of a download in the notes of a run."""

    watcher: Watcher

    def note(self, line: str) -> None:
        self.watcher.note(line)

    def advance(self, what: str, done: int, total: int) -> None:
        if done == total:
            self.watcher.note(f"{what}: {total:,} bytes fetched")


def _check_resumed(
    folder: Path,
    begun: Start | None,
    start: str | os.PathLike[str] | None,
    options: FinetuneOptions,
) -> None:
    """Raise if an argument differs from the plan of the resumed run; `start` may be repeated."""
    for name, _ in options.given():
        raise ConfigError(f"a resumed run keeps {name} as it was begun; leave it out")
    if start is not None and (begun is None or begun.weights != absolute(start)):
        came = "no weights" if begun is None else begun.weights
        raise ConfigError(f"{folder} was begun with {came}, not {os.fspath(start)}; leave it out")


def _prepare(
    weights: str,
    data: str,
    source: DataSource,
    folder: Path,
    *,
    options: FinetuneOptions,
    changes: Mapping[str, Any],
    licence: str | None,
    request: str,
    watcher: Watcher,
    world: World,
) -> TrainingRun:
    """Open weights, training images and teacher, each once, and choose the settings for them."""
    auto, given = take_auto(changes)
    of_run, of_model = split_changes(given)
    model = open_weights_for(
        weights,
        source,
        image_size=options.image_size,
        new_head=options.zero_head,
        changes=of_model,
        preprocessing=options.preprocessing,
    )
    images = source.open_train()
    name = variant_name(model.config) or title_of(weights)
    config, reasons = _settings(situation(model, source, of_run, images), options, of_run, name)
    start = Start(
        weights=weights,
        preprocessing=_preprocessing(model, source),
        new_head=options.zero_head,
        teacher=options.teacher,
    )
    started = Started(start=start, model=model, teacher=open_teacher(start, source, best_device()))
    plan = Plan(
        recipe=RECIPE,
        data=data,
        train=config,
        model=to_dict(model.config),
        steps=0,
        command=_command(weights, data, folder, options, given),
        request=request,
        commit=current_commit(),
        licence=licence or model.source.licence,
        start=start,
    )
    run = TrainingRun.prepare(
        share_config(plan, world),
        folder,
        source,
        watcher=watcher,
        auto=auto,
        images=images,
        started=started,
        world=world,
    )
    known = _known(model, len(source.labels))
    for note in (*source.all_notes, *reasons, *known, *run.split_notes):
        watcher.note(note)
    return run


def _known(model: VisionTransformer, classes: int) -> tuple[str, ...]:
    """Note on the classes of the data that the weights know."""
    known = model.source.known_classes
    if not known:
        return ()
    some = ", ".join(known[:3]) + (" ..." if len(known) > 3 else "")
    return (f"{len(known)} of {classes} classes are known to the weights by name ({some}): kept",)


def _preprocessing(model: VisionTransformer, source: DataSource) -> Preprocessing:
    """Preprocessing of the weights, with the data's value of white."""
    return replace(model.source.require_preprocessing(), white=source.white)


def _settings(
    found: recipes.Situation, options: FinetuneOptions, changes: dict[str, Any], name: str
) -> tuple[TrainConfig, tuple[str, ...]]:
    """Settings for this data and model, and the reasons; `name` is that of the model."""
    config = recipes.paper() if options.paper else recipes.finetuning(found)
    if options.linear_probe:
        config = recipes.linear_probe(config)
    if options.lora:
        config = recipes.with_lora(config, options.lora)
    if options.freeze:
        config = replace(config, frozen_blocks=options.freeze)
    if options.sam:
        config = replace(config, optimizer=replace(config.optimizer, sam=options.sam))
    patience = config.patience
    config = override(replace(config, model=name, patience=0), changes)
    if config.hold_out and "patience" not in changes:  # nothing held out, nothing to wait for
        config = replace(config, patience=patience)
    if options.paper:
        return config, ("the paper's protocol: SGD from a head of zeros",)
    return config, recipes.reasons(config, found)


def situation(
    model: nn.Module,
    source: DataSource,
    changes: Mapping[str, Any],
    images: ImageSet | None = None,
) -> recipes.Situation:
    """Facts that the settings depend on; the model may be without memory.

    `images` are the training images, opened here if not given and if they have to be counted.
    """
    wanted = {key: value for key, value in changes.items() if key == "images_per_class"}
    per_class = override(TrainConfig(), wanted).images_per_class
    classes, counts = len(source.labels), None
    if not per_class:
        images = source.open_train() if images is None else images
        counts = count_images(images.labels, source.labels)
    return recipes.Situation(
        images=per_class * classes if counts is None else counts.images,
        classes=classes,
        per_class_text=f"{per_class:,} per class" if counts is None else counts.per_class,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        side=min(pair(cast(Any, model).config.image_size)),
        accelerated=best_device().type != "cpu",
    )


def _command(
    weights: str, data: str, folder: Path, options: FinetuneOptions, changes: Mapping[str, Any]
) -> str:
    """Command line that repeats the fine-tuning."""
    words = ["finetune", "--from", weights, "--data", data, "--out", str(folder)]
    for name, value in options.given():
        flag = f"--{name.replace('_', '-')}"
        if name == "preprocessing":
            words += as_options(cast(Stated, value))
        elif value is True:
            words.append(flag)
        elif isinstance(value, tuple):
            words += [flag, "x".join(map(str, value))]
        elif value:
            words += [flag, str(value)]
    return exact_command(words, changes)
