"""`vitlab train`: from a recipe and data to a bundle and a report."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitlab.config import from_dict, override, to_dict
from vitlab.data.datasets import DataSource, open_data
from vitlab.data.draw import draw_per_class
from vitlab.data.images import FileSet, ImageSet, Survey
from vitlab.data.loader import batches_for_evaluation, open_loader
from vitlab.data.random import seed_for
from vitlab.data.split import hold_out
from vitlab.data.survey import check_share, recalling, surveyed
from vitlab.errors import ConfigError, DataError, OutOfMemory, WeightsError
from vitlab.evaluate.calibration import Temperature, fit_temperature
from vitlab.evaluate.classify import Batches, Evaluation, Evaluator, Outcome, collect
from vitlab.evaluate.classify import evaluate as judge
from vitlab.files import write_json
from vitlab.models.config import ViTConfig, pair
from vitlab.models.flops import cost
from vitlab.models.registry import configure, create_model
from vitlab.models.variants import ModelConfig
from vitlab.nn.lora import merge_lora
from vitlab.preprocessing import Preprocessing
from vitlab.recipes.registry import recipe as recipe_named
from vitlab.registry import DATASETS
from vitlab.runtime import keep_freed_memory
from vitlab.tasks.report import (
    Compute,
    Report,
    describe_data,
    describe_model,
    mistakes_in,
    write_report,
)
from vitlab.tasks.run_folder import (
    Plan,
    check_new,
    current_commit,
    exact_command,
    forget_run,
    read_plan,
    read_survey,
    working_in,
    write_plan,
    write_survey,
)
from vitlab.tasks.start import reopen, with_teacher
from vitlab.train.batch_size import (
    advice,
    check_memory,
    fitting_batch_size,
    out_of_memory,
)
from vitlab.train.budget import steps_for
from vitlab.train.checkpoint import checkpoints, load_checkpoint
from vitlab.train.config import TrainConfig
from vitlab.train.ema import averaged
from vitlab.train.events import check_tensorboard
from vitlab.train.forward import check_compiler
from vitlab.train.learning import passes, prepare_learning
from vitlab.train.log import Metric
from vitlab.train.loop import CHOSEN_BY, Evaluate, Loader, RunFiles, fit
from vitlab.train.memory import is_out_of_memory
from vitlab.train.optim import optimizer_flops
from vitlab.train.state import TrainState, new_state
from vitlab.weights.bundle import save_bundle

EVALUATION_BATCH = 250
BROKEN = "broken.json"
"""The images of a run that could not be read, with the reason."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Whom a run tells how it goes."""

    begin: Callable[[Plan, RunFiles], None] = lambda plan, files: None
    """Called before the first step, with the plan and where the run keeps its files."""
    metric: Callable[[Metric], None] = lambda metric: None
    note: Callable[[str], None] = lambda line: None
    """Called with what was found out or takes a while before the first step."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of a run."""

    folder: Path
    evaluation: Evaluation
    """Of the test split, or of the held-out images where there is no test split."""
    split: str
    metrics: dict[str, float]
    report: Path

    @property
    def bundle(self) -> Path:
        """The folder that `vitlab.load` reads."""
        return self.folder / "bundle"


def train(
    recipe: str | TrainConfig = "default",
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
    auto = not resume and wanted.get("batch_size") == "auto"
    known = None
    if resume:
        if licence is not None:
            raise ConfigError("a resumed run keeps the licence it was begun with; leave it out")
        plan, known = read_plan(folder), read_survey(folder)
        source = open_data(plan.data, download=download)
    else:
        check_new(folder)
        data, source = open_new(data, download=download)
        given = {key: value for key, value in wanted.items() if not (auto and key == "batch_size")}
        plan = replace(_decide(recipe, data, source, folder, given), licence=licence)
    job = Job.prepare(plan, folder, source, known, watcher, auto=auto)
    with working_in(folder):
        return job.run(watcher)


def open_new(data: str | os.PathLike[str] | None, *, download: bool) -> tuple[str, DataSource]:
    """What a new run learns from, and its name, by which it can be resumed from anywhere."""
    if data is None or not os.fspath(data):
        raise ConfigError("no data; pass --data NAME or FOLDER (vitlab data list shows names)")
    given = os.fspath(data)
    source = open_data(given, download=download)
    return given if given in DATASETS else os.path.abspath(os.path.expanduser(given)), source


def split_changes(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Changes of the run's settings, and of the model's."""
    of_model = {key[6:]: value for key, value in changes.items() if key.startswith("model.")}
    of_run = {key: value for key, value in changes.items() if not key.startswith("model.")}
    return of_run, of_model


def _decide(
    recipe: str | TrainConfig,
    data: str,
    source: DataSource,
    folder: Path,
    changes: dict[str, Any],
) -> Plan:
    """The plan of a new run, but for the number of steps, which the loader tells."""
    base = recipe_named(recipe) if isinstance(recipe, str) else recipe
    of_run, of_model = split_changes(changes)
    config = override(base, of_run)
    shape: dict[str, Any] = {"classes": len(source.labels), "channels": source.channels}
    if source.image_size is not None:
        shape["image_size"] = source.image_size
    model = override(configure(config.model, **shape | config.changes), of_model)
    for field in ("classes", "channels"):
        if getattr(model, field) != shape[field]:
            raise ConfigError(
                f"model.{field} {getattr(model, field)}; {source.name} has {shape[field]}"
            )
    name = recipe if isinstance(recipe, str) else "default"
    return Plan(
        recipe=name,
        data=data,
        train=config,
        model=to_dict(model),
        steps=0,
        command=exact_command(name, data, folder, changes),
        commit=current_commit(),
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to go."""

    plan: Plan
    files: RunFiles
    source: DataSource
    train: ImageSet
    validation: ImageSet | None
    preprocessing: Preprocessing
    state: TrainState
    loader: Loader
    unreadable: dict[Path, str]
    """Images that the loader never met, or that were to be judged."""

    @classmethod
    def prepare(
        cls,
        plan: Plan,
        folder: Path,
        source: DataSource,
        known: Survey | None,
        watcher: Watcher,
        *,
        auto: bool,
    ) -> "Job":
        """Open the training images, hold some out, and build model and loader."""
        config, device = plan.train, best_device()
        _check_options(config, device, watcher)
        images, validation = _open_train(source, config.max_broken, known), None
        if config.images_per_class:
            images = draw_per_class(images, config.images_per_class, seed=config.seed)
        if config.hold_out:
            images, validation = _hold_out(images, config)
        keep_freed_memory()
        torch.manual_seed(seed_for(config.seed, "init"))
        model = _first_model(plan, folder).to(device)
        prepare_learning(model, config)
        if auto:
            plan = _with_fitting_batches(plan, model, watcher)
            config = plan.train
        else:
            check_memory(model, config)
        state = new_state(model, config)
        preprocessing = _preprocessing(plan, model, source)
        loader: Loader = open_loader(
            images,
            batch_size=config.batch_size,
            seed=config.seed,
            augment=config.augment,
            preprocessing=preprocessing,
            classes=len(source.labels),
            device=device,
            workers=config.workers,
            max_broken=config.max_broken,
        )
        if plan.start is not None:
            loader = with_teacher(loader, plan.start, source, device)
        return cls(
            plan=plan,
            files=RunFiles(folder=folder),
            source=source,
            train=images,
            validation=validation,
            preprocessing=preprocessing,
            state=state,
            loader=loader,
            unreadable=_left_out(images),
        )

    def run(self, watcher: Watcher) -> Run:
        """Train, choose on the held-out images, then look at the test images once."""
        short = False
        try:
            plan = self._planned()
            watcher.begin(plan, self.files)
            fit(
                plan.train,
                self.state,
                self.loader,
                steps=plan.steps,
                evaluate=self._evaluator(),
                files=self.files,
                watch=watcher.metric,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            short = True
        finally:
            self.loader.close()
        if short:
            # Here and no earlier: while the error lives, its frames hold on to the activations.
            raise self._out_of_memory()
        weights = self._choose()
        merge_lora(self.state.model)
        return self._finish(plan, weights)

    def with_rate(self, rate: float) -> "Job":
        """The same with another peak rate, before its first step."""
        optimizer = replace(self.plan.train.optimizer, lr=rate)
        plan = replace(self.plan, train=replace(self.plan.train, optimizer=optimizer))
        return replace(self, plan=plan, state=new_state(self.state.model, plan.train))

    def _out_of_memory(self) -> OutOfMemory:
        """What to do about it; of a run that was just begun nothing stays."""
        config = self.plan.train
        if self.state.step:
            return OutOfMemory(
                config.batch_size,
                f"step {self.state.step} was the last to have it, and checkpoints are intact: "
                f"continue with --resume when other programs take less",
            )
        self.state.model.zero_grad(set_to_none=True)
        if not self.plan.steps:
            forget_run(self.files.folder)
        return out_of_memory(self.state.model, config)

    def _planned(self) -> Plan:
        """The plan with its number of steps, stored before the first of them."""
        folder, survey = self.files.folder, self._survey
        if not self.plan.steps:
            check_new(folder)  # nobody may have begun one meanwhile
        write_survey(folder, survey)
        if self.plan.steps:
            return self.plan
        evaluated = 0 if self.validation is None else len(self.validation)
        steps = steps_for(self.plan.train, self.state, self.loader, evaluated=evaluated)
        plan = replace(self.plan, steps=steps)
        write_plan(folder, plan)
        return plan

    @property
    def _survey(self) -> Survey | None:
        return self.train.survey if isinstance(self.train, FileSet) else None

    def _evaluator(self) -> Evaluate | None:
        if self.validation is None:
            return None
        validation = self.validation
        evaluator = Evaluator(
            batches=lambda: self._batches(validation), classes=len(self.source.labels)
        )
        return evaluator.run

    def _batches(self, images: ImageSet) -> Batches:
        return batches_for_evaluation(
            images,
            batch_size=EVALUATION_BATCH,
            preprocessing=self.preprocessing,
            device=next(self.state.model.parameters()).device,
            workers=self.plan.train.workers,
            broken=self.unreadable,
        )

    def _choose(self) -> str:
        """Give the model its best weights, judged by the held-out images alone; tell which."""
        state, evaluate = self.state, self._evaluator()
        if evaluate is None:
            if state.ema is not None:
                state.model.load_state_dict(state.ema.state)
            return "raw" if state.ema is None else "ema"
        if state.best_step and state.best_step != state.step:
            self._take_best()
        if state.ema is None:
            return "raw"
        raw = dict(evaluate(state.model))[CHOSEN_BY]
        with averaged(state.model, state.ema) as model:
            average = dict(evaluate(model))[CHOSEN_BY]
        if average < raw:
            return "raw"
        state.model.load_state_dict(state.ema.state)
        return "ema"

    def _take_best(self) -> None:
        best = new_state(self.state.model, self.plan.train)
        try:
            load_checkpoint(self.files.best, best)
        except WeightsError as error:
            log.warning("%s; the last weights take the place of the best", error)
            self.state.best_step = 0
            return
        self.state.ema = best.ema

    def _finish(self, plan: Plan, weights: str) -> Run:
        model, labels = self.state.model, self.source.labels
        split, images = self._judged_split()
        outcome = collect(model, self._batches(images))
        evaluation = judge(outcome, labels, temperature=self._temperature(model))
        metrics = {
            f"{split}_images": evaluation.images,
            f"{split}_accuracy": evaluation.accuracy,
            f"{split}_loss": evaluation.loss,
            **({"validation_accuracy": self.state.best} if self.state.best_step else {}),
        }
        save_bundle(
            self.files.folder / "bundle",
            model,
            preprocessing=self.preprocessing,
            labels=labels,
            metrics=metrics,
            provenance={
                "model": plan.train.model,
                "recipe": plan.recipe,
                "data": plan.data,
                "seed": plan.train.seed,
                "commit": plan.commit,
                "command": plan.command,
                "weights": weights,
                "licence": plan.licence,
                "vitlab": plan.version,
                **({} if plan.start is None else {"from": plan.start.weights}),
            },
        )
        write_json(self.files.folder / BROKEN, self._broken())
        report = write_report(
            self.files.folder, self._report(plan, weights, split, images, outcome, evaluation)
        )
        return Run(
            folder=self.files.folder,
            evaluation=evaluation,
            split=split,
            metrics=metrics,
            report=report,
        )

    def _broken(self) -> dict[str, str]:
        """Every image that could not be read, with the reason."""
        found = {**self.unreadable, **self.loader.broken}
        return {str(path): found[path] for path in sorted(found)}

    def _judged_split(self) -> tuple[str, ImageSet]:
        """The test images, opened here for the first time."""
        if self.source.open_test is not None:
            return "test", self.source.open_test()
        if self.validation is not None:
            return "validation", self.validation
        return "train", self.train

    def _temperature(self, model: nn.Module) -> Temperature | None:
        if self.validation is None or self.source.open_test is None:
            return None
        held_out = collect(model, self._batches(self.validation))
        return fit_temperature(held_out.logits, held_out.labels)

    def _report(
        self,
        plan: Plan,
        weights: str,
        split: str,
        images: ImageSet,
        outcome: Outcome,
        evaluation: Evaluation,
    ) -> Report:
        model, config = self.state.model, plan.train
        seen = self.state.step * config.batch_size
        extra = self.state.step * optimizer_flops(model, config.optimizer)
        counts = {"train": len(self.train)}
        if self.validation is not None:
            counts["validation"] = len(self.validation)
        notes = [f"The {'averaged' if weights == 'ema' else 'trained'} weights were kept."]
        if self.state.best_step:
            notes.append(f"Chosen on the held-out images after step {self.state.best_step}.")
        return Report(
            title=f"{config.model} on {self.source.name}",
            evaluation=evaluation,
            split=split,
            mistakes=mistakes_in(outcome, images, self.source.labels),
            model=describe_model(config.model, model, {"optimizer": config.optimizer.name}),
            data=describe_data(self.source, {**counts, split: len(images)}, augment=config.augment),
            compute=Compute(
                flops=passes(config) * cost(model).flops * seen + extra,
                seconds=self.state.seconds,
                images=seen,
                steps=self.state.step,
                device=str(next(model.parameters()).device),
            ),
            broken=self._broken(),
            command=plan.command,
            notes=tuple(notes),
        )


def _open_train(source: DataSource, max_broken: float, known: Survey | None) -> ImageSet:
    """The training images that can be read; those of a resumed run must be the same files."""
    with recalling(known):
        images = source.open_train()
        if not isinstance(images, FileSet):
            return images
        images = surveyed(images)
    assert images.survey is not None
    check_share(images.survey, max_broken)
    return images


def _hold_out(images: ImageSet, config: TrainConfig) -> tuple[ImageSet, ImageSet]:
    try:
        return hold_out(images, share=config.hold_out, seed=config.seed)
    except DataError as error:
        raise DataError(f"{error}; --set hold_out=0 holds none out") from error


def _left_out(images: ImageSet) -> dict[Path, str]:
    if not isinstance(images, FileSet) or images.survey is None:
        return {}
    found = dict(images.survey.broken_paths)
    if found:
        path, reason = next(iter(found.items()))
        log.warning(
            "%d of %d images cannot be read and take no part; one is %s: %s",
            len(found),
            images.survey.files,
            path,
            reason,
        )
    return found


def _check_options(config: TrainConfig, device: torch.device, watcher: Watcher) -> None:
    """Whether this machine has what the options need."""
    if config.tensorboard:
        check_tensorboard()
    if config.compile:
        watcher.note("looking for a compiler; the first step will take a while")
        check_compiler(device)


def _with_fitting_batches(plan: Plan, model: nn.Module, watcher: Watcher) -> Plan:
    """The plan with the recipe's batch size, or the largest power of two below it that fits."""
    config = plan.train
    # Not more than the recipe says: its rates were chosen for that.
    fitting = fitting_batch_size(model, config, largest=config.batch_size)
    if fitting is None:
        raise OutOfMemory(1, advice(None))
    watcher.note(
        f"batch size {fitting}, the largest up to {config.batch_size} that fits; "
        f"the learning rates stay the recipe's"
    )
    return replace(
        plan,
        train=replace(config, batch_size=fitting),
        command=f"{plan.command} --set batch_size={fitting}",
    )


def _first_model(plan: Plan, folder: Path) -> nn.Module:
    """The model before step 1; a checkpoint knows more than the weights that a run began with."""
    saved = RunFiles(folder=folder).checkpoints
    if plan.start is None or (saved.is_dir() and any(checkpoints(saved))):
        return create_model(model_config(plan))
    return reopen(plan.start, plan.model)


def _preprocessing(plan: Plan, model: nn.Module, source: DataSource) -> Preprocessing:
    if plan.start is not None:
        return plan.start.preprocessing
    size = pair(cast(Any, model).config.image_size)
    return Preprocessing(size=size, mean=source.mean, std=source.std)


def model_config(plan: Plan) -> ModelConfig:
    """The whole configuration of the plan's model."""
    if plan.start is not None:
        return from_dict(ViTConfig, plan.model)
    return from_dict(type(configure(plan.train.model)), plan.model)


def best_device() -> torch.device:
    """The accelerator, if there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found
