"""`vitlab train`: from a recipe and data to a bundle and a report."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitlab.config import from_dict, override, parse, to_dict
from vitlab.data.datasets import DataSource, open_data
from vitlab.data.images import ImageSet
from vitlab.data.loader import batches_for_evaluation, open_loader
from vitlab.data.random import seed_for
from vitlab.data.split import hold_out
from vitlab.errors import ConfigError
from vitlab.evaluate.calibration import Temperature, fit_temperature
from vitlab.evaluate.classify import Batches, Outcome, collect
from vitlab.models.config import ViTConfig, pair
from vitlab.models.flops import cost
from vitlab.models.registry import configure, create_model
from vitlab.models.variants import ModelConfig
from vitlab.preprocessing import Preprocessing
from vitlab.recipes.registry import recipe as recipe_named
from vitlab.tasks.aim import Aim, aim_for
from vitlab.tasks.judge import JUDGES
from vitlab.tasks.report import (
    Compute,
    Judged,
    Report,
    describe_data,
    describe_model,
    write_report,
)
from vitlab.tasks.run_folder import (
    Plan,
    check_new,
    current_commit,
    exact_command,
    read_plan,
    write_plan,
)
from vitlab.train.budget import steps_for
from vitlab.train.checkpoint import load_checkpoint
from vitlab.train.config import TrainConfig
from vitlab.train.ema import averaged
from vitlab.train.log import Metric
from vitlab.train.loop import Evaluate, Loader, RunFiles, fit
from vitlab.train.optim import optimizer_flops
from vitlab.train.state import TrainState, new_state
from vitlab.weights.bundle import save_bundle

EVALUATION_BATCH = 250


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Whom a run tells how it goes."""

    begin: Callable[[Plan, RunFiles], None] = lambda plan, files: None
    """Called before the first step, with the plan and where the run keeps its files."""
    metric: Callable[[Metric], None] = lambda metric: None
    note: Callable[[str], None] = lambda note: None
    """Told what was decided by looking at the data."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of a run."""

    folder: Path
    evaluation: Judged
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
    watcher: Watcher | None = None,
) -> Run:
    """Train a model, keep the best of it, and write what it is worth to `out`.

    `changes` are dotted fields of `TrainConfig`; `model.FIELD` is a field of the model's config.
    """
    folder = Path(out)
    if resume:
        plan = read_plan(folder)
        source = open_data(plan.data, download=download, channels=plan.model["channels"])
    else:
        check_new(folder)
        if data is None:
            raise ConfigError(
                "no data; pass --data NAME, FOLDER or CSV (vitlab data list shows names)"
            )
        wanted = dict(changes or {})
        source = open_data(data, download=download, channels=_channels(wanted))
        plan = _decide(recipe, os.fspath(data), source, folder, wanted)
    watcher = watcher or Watcher()
    for note in source.notes:
        watcher.note(note)
    return _Job.prepare(plan, folder, source).run(watcher)


def _channels(changes: Mapping[str, Any]) -> int | None:
    """How many channels images are to be read with, where somebody says it."""
    found = changes.get("model.channels")
    return parse(ViTConfig, "channels", found) if isinstance(found, str) else found


def _decide(
    recipe: str | TrainConfig,
    data: str,
    source: DataSource,
    folder: Path,
    changes: dict[str, Any],
) -> Plan:
    """The plan of a new run, but for the number of steps, which the loader tells."""
    base = recipe_named(recipe) if isinstance(recipe, str) else recipe
    of_model = {key[6:]: value for key, value in changes.items() if key.startswith("model.")}
    of_run = {key: value for key, value in changes.items() if not key.startswith("model.")}
    config = override(base, of_run)
    shape: dict[str, Any] = {"classes": len(source.labels), "channels": source.channels}
    if source.image_size is not None:
        shape["image_size"] = source.image_size
    model = override(configure(config.model, **shape, **config.changes), of_model)
    if model.channels != source.channels:
        raise ConfigError(f"{source.name} has {source.channels} channels, not {model.channels}")
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
class _Job:
    """A run that is ready to go."""

    plan: Plan
    files: RunFiles
    source: DataSource
    train: ImageSet
    validation: ImageSet | None
    preprocessing: Preprocessing
    aim: Aim
    state: TrainState
    loader: Loader

    @classmethod
    def prepare(cls, plan: Plan, folder: Path, source: DataSource) -> "_Job":
        """Open the training images, hold some out, and build model and loader."""
        config = plan.train
        images, validation = source.open_train(), None
        if config.hold_out:
            images, validation = hold_out(images, share=config.hold_out, seed=config.seed)
        aim = aim_for(source.task, images, len(source.labels), config)
        device = best_device()
        torch.manual_seed(seed_for(config.seed, "init"))
        model = create_model(model_config(plan)).to(device)
        preprocessing = Preprocessing(
            size=pair(cast(Any, model.config).image_size),
            mean=source.mean,
            std=source.std,
            white=source.white,
        )
        loader = open_loader(
            images,
            batch_size=config.batch_size,
            seed=config.seed,
            augment=config.augment,
            preprocessing=preprocessing,
            classes=len(source.labels),
            device=device,
            workers=config.workers,
            max_broken=config.max_broken,
            weights=aim.weights,
        )
        return cls(
            plan=plan,
            files=RunFiles(folder=folder),
            source=source,
            train=images,
            validation=validation,
            preprocessing=preprocessing,
            aim=aim,
            state=new_state(model, config),
            loader=loader,
        )

    def run(self, watcher: Watcher) -> Run:
        """Train, choose on the held-out images, then look at the test images once."""
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
                goal=self.aim.goal,
            )
        finally:
            self.loader.close()
        weights = self._choose()
        self.aim.settle(self.state.model)
        return self._finish(plan, weights)

    def _planned(self) -> Plan:
        """The plan with its number of steps, stored before the first of them."""
        if self.plan.steps:
            return self.plan
        loss = self.aim.goal.loss
        steps = steps_for(self.plan.train, self.state, self.loader, loss)
        plan = replace(self.plan, steps=steps)
        self.files.folder.mkdir(parents=True, exist_ok=True)
        write_plan(self.files.folder, plan)
        return plan

    def _evaluator(self) -> Evaluate | None:
        if self.validation is None:
            return None
        validation = self.validation
        return self.aim.watch(lambda: self._batches(validation))

    def _batches(self, images: ImageSet) -> Batches:
        return batches_for_evaluation(
            images,
            batch_size=EVALUATION_BATCH,
            preprocessing=self.preprocessing,
            device=next(self.state.model.parameters()).device,
            workers=self.plan.train.workers,
            broken=self.loader.broken,
        )

    def _choose(self) -> str:
        """Give the model its best weights, judged by the held-out images alone; tell which."""
        state, evaluate = self.state, self._evaluator()
        if evaluate is None:
            if state.ema is not None:
                state.model.load_state_dict(state.ema.state)
            return "raw" if state.ema is None else "ema"
        if state.best_step and state.best_step != state.step:
            best = new_state(state.model, self.plan.train)
            load_checkpoint(self.files.best, best)
            state.ema = best.ema
        if state.ema is None:
            return "raw"
        chosen_by = self.aim.goal.chosen_by
        raw = dict(evaluate(state.model))[chosen_by]
        with averaged(state.model, state.ema) as model:
            average = dict(evaluate(model))[chosen_by]
        if average < raw:
            return "raw"
        state.model.load_state_dict(state.ema.state)
        return "ema"

    def _finish(self, plan: Plan, weights: str) -> Run:
        model, labels, judge = self.state.model, self.source.labels, JUDGES[self.source.task]
        split, images = self._judged_split()
        outcome = collect(model, self._batches(images))
        evaluation = judge.worth(outcome, labels, self._temperature(model))
        metrics = {f"{split}_{name}": value for name, value in judge.figures(evaluation).items()}
        if self.state.best_step:
            metrics[f"validation_{self.aim.goal.chosen_by}"] = self.state.best
        save_bundle(
            self.files.folder / "bundle",
            model,
            preprocessing=self.preprocessing,
            labels=labels,
            task=self.source.task,
            targets=self.aim.targets,
            metrics=metrics,
            provenance={
                "recipe": plan.recipe,
                "data": plan.data,
                "seed": plan.train.seed,
                "commit": plan.commit,
                "command": plan.command,
                "weights": weights,
                "licence": None,
                "vitlab": plan.version,
            },
        )
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
        if not JUDGES[self.source.task].calibrated:
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
        evaluation: Judged,
    ) -> Report:
        model, config = self.state.model, plan.train
        seen = self.state.step * config.batch_size
        extra = self.state.step * optimizer_flops(model, config.optimizer)
        counts = {"train": len(self.train)}
        if self.validation is not None:
            counts["validation"] = len(self.validation)
        notes = [f"{note}." for note in self.source.notes]
        notes.append(f"The {'averaged' if weights == 'ema' else 'trained'} weights were kept.")
        if self.state.best_step:
            notes.append(f"Chosen on the held-out images after step {self.state.best_step}.")
        return Report(
            title=f"{config.model} on {self.source.name}",
            evaluation=evaluation,
            split=split,
            mistakes=JUDGES[self.source.task].mistakes(outcome, images, self.source.labels),
            model=describe_model(config.model, model, {"optimizer": config.optimizer.name}),
            data=describe_data(self.source, {**counts, split: len(images)}, augment=config.augment),
            compute=Compute(
                flops=3 * cost(model).flops * seen + extra,
                seconds=self.state.seconds,
                images=seen,
                steps=self.state.step,
                device=str(next(model.parameters()).device),
            ),
            broken={str(path): why for path, why in self.loader.broken.items()},
            command=plan.command,
            notes=tuple(notes),
        )


def model_config(plan: Plan) -> ModelConfig:
    """The whole configuration of the plan's model."""
    return from_dict(type(configure(plan.train.model)), plan.model)


def best_device() -> torch.device:
    """The accelerator, if there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found
