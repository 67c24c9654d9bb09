"""A run from its plan to its trained model: prepare, train, choose; `job_result` does the rest."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitlab.classify.batch_size import DEVICE_MEMORY, check_weights, fitting
from vitlab.config import from_dict
from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet, Survey
from vitlab.data.loading.loader import batches_for_evaluation, open_loader
from vitlab.data.random import seed_for
from vitlab.errors import OutOfMemory, WeightsError
from vitlab.evaluation.classification import Batches
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs.objective import Aim, aim_for
from vitlab.jobs.pretrain_result import finish_pretraining, pretraining_aim
from vitlab.jobs.run_data import left_out, open_images, split_notes, survey_of
from vitlab.jobs.run_folder import Plan, check_new, forget_run, write_plan, write_survey
from vitlab.jobs.run_machine import (
    check_options,
    with_fitting_batches,
    with_precision,
)
from vitlab.jobs.run_result import Run, Trained
from vitlab.jobs.run_start import check_whitening, reopen, start_white, with_teacher
from vitlab.machine.cores import keep_freed_memory
from vitlab.machine.device import best_device, is_out_of_memory
from vitlab.models.build import configure, create_model
from vitlab.models.config import ViTConfig, pair
from vitlab.models.cost import weight_bytes
from vitlab.models.variants import ModelConfig
from vitlab.nn.lora import merge_lora
from vitlab.training.batch_size import check_memory, out_of_memory
from vitlab.training.budget import steps_for
from vitlab.training.checkpoint import checkpoints, read_checkpoint, restore
from vitlab.training.ema import averaged
from vitlab.training.log import Metric
from vitlab.training.loop import Loader, RunFiles, fit
from vitlab.training.loss import Evaluate
from vitlab.training.pretraining import with_objective
from vitlab.training.progressive_resize import check_small_sizes
from vitlab.training.state import TrainState, new_state
from vitlab.training.teacher import TaughtLoader
from vitlab.training.trainable import prepare_learning
from vitlab.weights.formats.native import NoInitialisation

EVALUATION_BATCH = 250

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Whom a run tells how it goes."""

    begin: Callable[[Plan, RunFiles], None] = lambda plan, files: None
    """Called before the first step, with the plan and where the run keeps its files."""
    metric: Callable[[Metric], None] = lambda metric: None
    files: Callable[[int, int], None] = lambda done, total: None
    """Called with how many of how many files were looked at, before the first step."""
    note: Callable[[str], None] = lambda line: None
    """Called with what was found out, was decided or takes a while before the first step."""


def evaluation_batch(config: ModelConfig) -> int:
    """Images that are judged at once: fewer of large models, the same wherever a run goes on."""
    if not isinstance(config, ViTConfig):
        return EVALUATION_BATCH
    numbers = config.tokens * max(config.mlp_width, config.heads * config.tokens, 3 * config.width)
    return min(EVALUATION_BATCH, fitting(4 * numbers, DEVICE_MEMORY))


def model_config(plan: Plan) -> ModelConfig:
    """The whole configuration of the plan's model."""
    if plan.start is not None:
        return from_dict(ViTConfig, plan.model)
    return from_dict(type(configure(plan.train.model)), plan.model)


def first_model(plan: Plan, files: RunFiles, source: DataSource) -> nn.Module:
    """The model before step 1; a checkpoint knows more than the weights that a run began with."""
    if plan.start is None or has_checkpoint(files):
        return _fresh_model(model_config(plan))
    return reopen(plan.start, plan.model, source)


def _fresh_model(config: ModelConfig) -> nn.Module:
    """A model with fresh weights; an error before any memory is taken if they do not fit."""
    with torch.device("meta"), NoInitialisation():
        check_weights("the model of this run", weight_bytes(create_model(config)))
    return create_model(config)


def has_checkpoint(files: RunFiles) -> bool:
    """Whether a run has come so far that it will go on from a checkpoint."""
    return files.checkpoints.is_dir() and any(checkpoints(files.checkpoints))


def preprocessing_for(plan: Plan, model: nn.Module, source: DataSource) -> Preprocessing:
    """As the weights that the run begins with want it, else by the statistics of the data."""
    if plan.start is not None:
        return plan.start.preprocessing
    size = pair(cast(Any, model).config.image_size)
    return Preprocessing(size=size, mean=source.mean, std=source.std, white=source.white)


@dataclass(frozen=True, kw_only=True)
class Job:
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
    unreadable: dict[Path, str]
    """Images that the loader never met, or that were to be judged."""

    @classmethod
    def prepare(
        cls,
        plan: Plan,
        folder: Path,
        source: DataSource,
        *,
        known: Survey | None = None,
        watcher: Watcher,
        auto: bool = False,
    ) -> "Job":
        """Open the training images, hold some out, and build model and loader.

        `known` is the survey of a run that is resumed; with `auto` the batch size is found first.
        """
        device, files = best_device(), RunFiles(folder=folder)
        plan = with_precision(plan, device, watcher.note)
        config = plan.train
        check_options(config, device, watcher.note)
        images, validation = open_images(source, config, known)
        if config.objective is None:
            aim = aim_for(source.task, images, validation, len(source.labels), config)
        else:
            aim = pretraining_aim(config)
        keep_freed_memory()
        torch.manual_seed(seed_for(config.seed, "init"))
        model = first_model(plan, files, source).to(device)
        preprocessing = preprocessing_for(plan, model, source)
        if config.objective is not None:
            model = with_objective(model, config, preprocessing).to(device)
        check_small_sizes(model, config)
        check_whitening(model, config, plan.start)
        if config.whiten and not has_checkpoint(files):
            start_white(model, images, config, preprocessing)
        prepare_learning(model, config)
        if auto:
            plan = with_fitting_batches(plan, model, watcher.note)
            config = plan.train
        else:
            check_memory(model, config)
        state = new_state(model, config)
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
            weights=aim.weights,
        )
        if plan.start is not None:
            loader = with_teacher(loader, plan.start, source, device)
        return cls(
            plan=plan,
            files=files,
            source=source,
            train=images,
            validation=validation,
            preprocessing=preprocessing,
            aim=aim,
            state=state,
            loader=loader,
            unreadable=left_out(images),
        )

    @property
    def split_notes(self) -> tuple[str, ...]:
        """Sentences about the images; none where their labels are not used."""
        if self.plan.train.objective is not None:
            return ()
        return split_notes(self.source, self.train, self.validation)

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
                goal=self.aim.goal,
                teacher_flops=self._teacher_flops(),
                plan=plan.deciding,
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
        self.aim.settle(self.state.model)
        trained = self._trained(plan, weights)
        return trained.finish() if plan.train.objective is None else finish_pretraining(trained)

    def with_rate(self, rate: float) -> "Job":
        """The same with another peak rate, and Muon's in proportion, before its first step."""
        given = self.plan.train.optimizer
        optimizer = replace(given, lr=rate, muon_lr=given.muon_lr * rate / given.lr)
        plan = replace(self.plan, train=replace(self.plan.train, optimizer=optimizer))
        return replace(self, plan=plan, state=new_state(self.state.model, plan.train))

    def _teacher_flops(self) -> int:
        return self.loader.flops if isinstance(self.loader, TaughtLoader) else 0

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
        folder = self.files.folder
        if not self.plan.steps:
            check_new(folder)  # nobody may have begun one meanwhile
        write_survey(folder, survey_of(self.train))
        if self.plan.steps:
            return self.plan
        steps = steps_for(
            self.plan.train,
            self.state,
            self.loader,
            evaluated=0 if self.validation is None else len(self.validation),
            loss_of=self.aim.goal.loss,
        )
        plan = replace(self.plan, steps=steps, threads=torch.get_num_threads())
        write_plan(folder, plan)
        return plan

    def _evaluator(self) -> Evaluate | None:
        if self.validation is None:
            return None
        validation = self.validation
        return self.aim.watch(lambda: self._batches(validation))

    def _batches(self, images: ImageSet) -> Batches:
        return batches_for_evaluation(
            images,
            batch_size=evaluation_batch(model_config(self.plan)),
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
        chosen_by = self.aim.goal.chosen_by
        raw = dict(evaluate(state.model))[chosen_by]
        with averaged(state.model, state.ema) as model:
            average = dict(evaluate(model))[chosen_by]
        if average < raw - self.aim.goal.noise(raw):
            state.best = raw
            return "raw"
        state.best = average
        state.model.load_state_dict(state.ema.state)
        return "ema"

    def _take_best(self) -> None:
        best = new_state(self.state.model, self.plan.train)
        try:
            checkpoint = read_checkpoint(self.files.best)
            step = checkpoint.numbers["step"]
            if step != self.state.best_step:
                raise WeightsError(
                    f"{self.files.best}: from step {step}; valid: step {self.state.best_step}"
                )
            restore(best, checkpoint)
        except WeightsError as error:
            log.warning("%s; the last weights take the place of the best", error)
            self.state.best_step = 0
            return
        self.state.ema = best.ema

    def _trained(self, plan: Plan, weights: str) -> Trained:
        return Trained(
            plan=plan,
            folder=self.files.folder,
            source=self.source,
            train=self.train,
            validation=self.validation,
            preprocessing=self.preprocessing,
            aim=self.aim,
            state=self.state,
            weights=weights,
            batches=self._batches,
            broken=lambda: {**self.unreadable, **self.loader.broken},
        )
