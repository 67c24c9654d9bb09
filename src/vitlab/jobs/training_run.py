"""A training run as one object: its plan, images, model and loader."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from vitlab.data.datasets import (
    DataSource,
    absent_classes,
    check_judged,
    check_split,
    split_counts,
)
from vitlab.data.images import ArraySet, ImageSet, IndexedSet, Survey, survey_of, warn_unreadable
from vitlab.data.loader import batches_for_evaluation, open_loader
from vitlab.data.order import seed_for
from vitlab.data.split import check_damage, check_share, draw_per_class, hold_out
from vitlab.errors import ConfigError, DataError, OutOfMemory
from vitlab.evaluation.classification import Batches
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs.plan import Plan, model_config
from vitlab.jobs.processes import check_same, divide_batches, share_config
from vitlab.jobs.start import Started, open_start
from vitlab.machine.device import (
    DEVICE_MEMORY,
    best_device,
    check_weights,
    decoding_processes,
    fast_precision,
    fitting,
    keep_freed_memory,
)
from vitlab.machine.world import ALONE, World, by_first, whole
from vitlab.models.config import ViTConfig, pair
from vitlab.models.cost import weight_bytes
from vitlab.models.variants import ModelConfig, create_model
from vitlab.nn.init import NoInitialisation
from vitlab.report.plots import check_matplotlib
from vitlab.training.batch_pieces import check_division, rows_of
from vitlab.training.batch_size import advice, check_memory, fitting_batch_size
from vitlab.training.checkpoint import has_checkpoint
from vitlab.training.config import TrainConfig
from vitlab.training.find_lr import draw_trials, find_lr, suggested_lr
from vitlab.training.loggers import Metric, check_loggers
from vitlab.training.loop import Loader, RunFiles
from vitlab.training.loss import Evaluate
from vitlab.training.objective import Learning, learning_for
from vitlab.training.pretraining import pretraining_learning, with_objective
from vitlab.training.progressive_resize import check_small_sizes
from vitlab.training.state import TrainState, check_compiler, new_state
from vitlab.training.trainable import prepare_learning
from vitlab.training.whiten import check_whitening, start_white

EVALUATION_BATCH = 250
"""Maximum number of images evaluated at once."""


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Callbacks for the progress of a run."""

    begin: Callable[[Plan, RunFiles], None] = lambda plan, files: None
    """Called before the first step, with the plan and the paths of the run's files."""
    metric: Callable[[Metric], None] = lambda metric: None
    files: Callable[[int, int], None] = lambda done, total: None
    """Called during the survey of image files, with the number done and their total."""
    stage: Callable[[str, int, int], None] = lambda name, done, total: None
    """Called after training, with the name of a stage and how much of it is done, of how much."""
    note: Callable[[str], None] = lambda line: None
    """Called with findings and decisions, such as the reason for an early stop."""


@dataclass(kw_only=True)
class TrainingRun:
    """A run from its preparation to its result: `jobs.train.carry_out` trains it."""

    plan: Plan
    """Decisions so far: the number of steps is added just before the first of them."""
    files: RunFiles
    source: DataSource
    train: ImageSet
    validation: ImageSet | None
    """Images held out from the training images, for choosing weights."""
    preprocessing: Preprocessing
    learning: Learning
    """Loss, metrics and sampling weights."""
    state: TrainState
    loader: Loader
    unreadable: dict[Path, str]
    """Images left out before training or during evaluation, with the reason."""
    watcher: Watcher
    world: World = ALONE
    """Processes that train together."""
    knows_classes: bool = False
    """True if the weights before step 1 know all classes: they are evaluated too."""
    began: float = field(default_factory=time.monotonic)
    """Time of `time.monotonic` at which the run was prepared."""
    weights: Literal["raw", "ema"] = "raw"
    """Kind of weights chosen at the end of training."""

    @classmethod
    def prepare(
        cls,
        plan: Plan,
        folder: Path,
        source: DataSource,
        *,
        watcher: Watcher,
        known: Survey | None = None,
        auto: Collection[str] = (),
        images: ImageSet | None = None,
        started: Started | None = None,
        world: World = ALONE,
    ) -> "TrainingRun":
        """Split the images, and build model, optimizers and loader.

        `known` is the survey of a resumed run; settings named in `auto` are found first. `images`
        (all training images) and `started` (weights and teacher) are opened here if not given.
        """
        began, device, files = time.monotonic(), best_device(), RunFiles(folder=folder)
        plan = _with_precision(plan, device, watcher)
        if "workers" in auto:
            plan = _settled(plan, workers=decoding_processes(device))
        config = (plan := share_config(plan, world)).train
        _check_options(config, device, watcher)
        _check_processes(config, world, auto)
        train, validation = open_images(source, config, known, images)
        check_same(train, world)
        if config.objective is None:
            learning = learning_for(source.task, train, validation, len(source.labels), config)
        else:
            learning = pretraining_learning(config)
        keep_freed_memory()
        torch.manual_seed(seed_for(config.seed, "init"))
        resumed = world.share(has_checkpoint(files.checkpoints))
        if plan.start is not None and started is None:
            started = open_start(plan.start, plan.model, source, device, weights=not resumed)
        model = _first_model(plan, started).to(device)
        preprocessing = _preprocessing(plan, model, source)
        model = _prepared(model, plan, None if resumed else train, preprocessing, device)
        if "batch_size" in auto:
            config = (plan := _with_fitting_batches(plan, model, watcher)).train
        else:
            # Processes on one machine share its memory.
            check_memory(model, config, -(-config.batch_size // world.size) * world.local_size)
        state = new_state(model, config, world)
        loader = _open_loader(plan, train, preprocessing, learning, source, device, world)
        return cls(
            plan=plan,
            files=files,
            source=source,
            train=train,
            validation=validation,
            preprocessing=preprocessing,
            learning=learning,
            state=state,
            loader=loader if started is None else started.taught(loader, len(source.labels)),
            unreadable=_unreadable(train),
            watcher=watcher,
            world=world,
            began=began,
            knows_classes=started is not None and started.knows(source.labels),
        )

    @property
    def folder(self) -> Path:
        """Folder that the run writes to."""
        return self.files.folder

    @property
    def model(self) -> nn.Module:
        """The model in training, or trained."""
        return self.state.model

    @property
    def broken(self) -> dict[Path, str]:
        """All images that could not be read so far, with the reason."""
        return {**self.unreadable, **self.loader.broken}

    @property
    def split_notes(self) -> tuple[str, ...]:
        """Notes on the images of each class; none if labels are not used."""
        if self.plan.train.objective is not None:
            return ()
        counts = split_counts(self.source, self.train, self.validation)
        listed = ", ".join(f"{name} {found.text}" for name, found in counts.items())
        absent = absent_classes(self.source, counts)
        return (f"images: {listed}", *(f"warning: {text}" for text in absent))

    def batches(self, images: ImageSet, stage: str | None = None) -> Batches:
        """Batches of images for evaluation; the watcher counts those of a `stage`."""
        size = evaluation_batch(model_config(self.plan))

        def read(world: World) -> Batches:
            found = batches_for_evaluation(
                images,
                batch_size=size,
                preprocessing=self.preprocessing,
                device=next(self.model.parameters()).device,
                workers=self.plan.train.workers,
                broken=self.unreadable,
                world=world,
            )
            return found if stage is None else self._counted(found, stage, len(images), world)

        blank = self._blank if self.state.sharded else None
        return divide_batches(read, len(images), size, self.world, self.unreadable, blank)

    def _counted(self, batches: Batches, stage: str, total: int, world: World) -> Batches:
        done = 0
        self.watcher.stage(stage, done, total)
        for batch in batches:
            yield batch
            done += len(batch[1]) * world.size
            self.watcher.stage(stage, min(done, total), total)

    def _blank(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One image without content."""
        prepared, device = self.preprocessing, next(self.model.parameters()).device
        images = torch.zeros(1, prepared.channels, *prepared.size, device=device)
        return images, self.train.labels[:1], torch.zeros(1, dtype=torch.int64)

    def gather_model(self) -> None:
        """Replace a model in shards by a whole one, in every process; training is over."""
        if not self.state.sharded:
            return
        weights = {name: whole(value) for name, value in self.model.state_dict().items()}
        device, source = next(self.model.parameters()).device, getattr(self.model, "source", None)
        model = create_model(model_config(self.plan))
        if self.plan.train.objective is not None:
            model = with_objective(model, self.plan.train, self.preprocessing)
        prepare_learning(model, self.plan.train)
        model.load_state_dict(weights)
        if source is not None:
            model.source = source
        self.state.model, self.state.sharded = model.to(device), False
        self.state.optimizers, self.state.ema = [], None

    def evaluator(self, stage: str | None = None) -> Evaluate | None:
        """Evaluation of a model on the held-out images, as a `stage`; None if there are none."""
        if self.validation is None:
            return None
        validation = self.validation
        return self.learning.evaluator(lambda: self.batches(validation, stage))

    def find_lr(self) -> None:
        """Set the peak learning rate by a range test; `find-lr.png` is drawn when the run begins.

        Muon's changes in proportion.
        """
        watcher, given = self.watcher, self.plan.train.optimizer
        if self.state.sharded:
            raise ConfigError(
                "find_lr with parallel fsdp; valid: parallel ddp, or a learning rate (optimizer.lr)"
            )
        watcher.note("range test: the loss while the learning rate grows from step to step ...")
        trials = find_lr(
            self.model,
            self.plan.train,
            self.loader,
            loss_of=self.learning.goal.loss,
            world=self.world,
        )
        lr = suggested_lr(trials)
        watcher.note(f"range test: learning rate {lr:g} (find-lr.png)")

        def begin(plan: Plan, files: RunFiles) -> None:
            if self.world.rank == 0:
                draw_trials(trials, lr, files.folder / "find-lr.png")
            watcher.begin(plan, files)

        optimizer = replace(given, lr=lr, muon_lr=given.muon_lr * lr / given.lr)
        self.plan = replace(self.plan, train=replace(self.plan.train, optimizer=optimizer))
        self.state = new_state(self.model, self.plan.train, self.world)
        self.watcher = replace(watcher, begin=begin)


# The images of a run.


def open_images(
    source: DataSource,
    config: TrainConfig,
    known: Survey | None,
    images: ImageSet | None = None,
) -> tuple[ImageSet, ImageSet | None]:
    """Readable training images, and those held out from them, if any.

    With `known`, the survey of a resumed run, the files must be the same as then.
    """
    if known is None and config.judge_all and config.judged_on == "test":
        check_judged(source)
    images = _readable(source, source.open_train() if images is None else images, config.max_broken)
    checked = config.judge_all and config.objective is None
    try:
        train, validation = divided(images, config)
    except DataError:
        if checked and not config.images_per_class:
            _check_parts(source, config, images, images.subset(torch.tensor([], dtype=torch.int64)))
        raise
    if checked:
        _check_parts(source, config, train, validation)
    return train, validation


def divided(images: ImageSet, config: TrainConfig) -> tuple[ImageSet, ImageSet | None]:
    """Split readable images into those to train with and those held out."""
    if config.images_per_class:
        images = draw_per_class(images, config.images_per_class, seed=config.seed)
    if not config.hold_out:
        return images, None
    try:
        return hold_out(images, share=config.hold_out, seed=config.seed)
    except DataError as error:
        raise DataError(f"{error}; --set hold_out=0 holds none out") from error


def _readable(source: DataSource, images: ImageSet, max_broken: float) -> ImageSet:
    if isinstance(images, ArraySet):
        return images
    if isinstance(images, IndexedSet):
        check_damage(images, max_broken)
    images = source.survey(images)
    assert images.survey is not None
    check_share(images.survey, max_broken)
    return images


def _check_parts(
    source: DataSource, config: TrainConfig, train: ImageSet, validation: ImageSet | None
) -> None:
    """Raise if a class is missing in a part of a split made by vitlab."""
    parts = {"to learn from": train}
    if validation is not None:
        parts["to hold out"] = validation
    if source.divided and source.open_test is not None and config.judged_on == "test":
        parts["to test"] = source.open_test()
    check_split(source, parts, otherwise=", --set hold_out=0, or --set judge_all=false")


def _unreadable(images: ImageSet) -> dict[Path, str]:
    """Unreadable files of a surveyed set, with the reason; their number is logged."""
    survey = survey_of(images)
    found = {} if survey is None else dict(survey.broken_paths)
    if survey is not None and found:
        warn_unreadable(found, f"{survey.files} images")
    return found


# The model before the first step, and settings that depend on the machine.


def evaluation_batch(config: ModelConfig) -> int:
    """Images evaluated at once: fewer for large models, the same on every machine."""
    if not isinstance(config, ViTConfig):
        return EVALUATION_BATCH
    numbers = config.tokens * max(config.mlp_width, config.heads * config.tokens, 3 * config.width)
    return min(EVALUATION_BATCH, fitting(4 * numbers, DEVICE_MEMORY))


def _first_model(plan: Plan, started: Started | None) -> nn.Module:
    """The model before step 1; raise before allocating if random weights do not fit."""
    if started is not None and started.model is not None:
        return started.model
    config = model_config(plan)
    with torch.device("meta"), NoInitialisation():
        check_weights("the model of this run", weight_bytes(create_model(config)))
    return create_model(config)


def _prepared(
    model: nn.Module,
    plan: Plan,
    train: ImageSet | None,
    preprocessing: Preprocessing,
    device: torch.device,
) -> nn.Module:
    """The model with its objective and trainable parameters; `train` None: of a resumed run."""
    config = plan.train
    if config.objective is not None:
        model = with_objective(model, config, preprocessing).to(device)
    check_small_sizes(model, config)
    if config.whiten:
        check_whitening(model, config, None if plan.start is None else plan.start.weights)
    if config.whiten and train is not None:
        start_white(model, train, config, preprocessing)
    prepare_learning(model, config)
    return model


def _open_loader(
    plan: Plan,
    train: ImageSet,
    preprocessing: Preprocessing,
    learning: Learning,
    source: DataSource,
    device: torch.device,
    world: World,
) -> Loader:
    config = plan.train
    return open_loader(
        train,
        batch_size=config.batch_size,
        seed=config.seed,
        augment=config.augment,
        preprocessing=preprocessing,
        classes=len(source.labels),
        device=device,
        workers=config.workers,
        max_broken=config.max_broken,
        weights=learning.weights,
        window=config.shard_window,
        rows=rows_of(config, world),
    )


def _preprocessing(plan: Plan, model: nn.Module, source: DataSource) -> Preprocessing:
    """Preprocessing of the pretrained weights, else with the statistics of the data."""
    if plan.start is not None:
        return plan.start.preprocessing
    size = pair(cast(Any, model).config.image_size)
    return Preprocessing(size=size, mean=source.mean, std=source.std, white=source.white)


def _check_options(config: TrainConfig, device: torch.device, watcher: Watcher) -> None:
    """Raise if an option needs something that this machine does not have."""
    check_loggers(config.all_loggers)
    if config.objective is not None:
        check_matplotlib()
    if config.compile:
        watcher.note("looking for a compiler; the first step will take a while")
        check_compiler(device)


def _check_processes(config: TrainConfig, world: World, auto: Collection[str]) -> None:
    """Raise if several processes cannot train together as configured."""
    by_first(lambda: check_division(config, world), world)
    if "batch_size" in auto and world.size > 1:
        raise ConfigError(
            f"batch_size auto with {world.size} processes; valid: the number of images in the "
            f"batch of all processes"
        )


def _with_precision(plan: Plan, device: torch.device, watcher: Watcher) -> Plan:
    """Replace precision `auto` by the fastest one on this machine."""
    if plan.train.precision != "auto":
        return plan
    precision = fast_precision(device)
    if precision == "bfloat16":
        watcher.note(
            "bfloat16, which this machine multiplies faster; weights and optimizer in float32"
        )
    return _settled(plan, precision=precision)


def _with_fitting_batches(plan: Plan, model: nn.Module, watcher: Watcher) -> Plan:
    """Use the recipe's batch size, or the largest power of two below it that fits."""
    config = plan.train
    # Not more than the recipe's: its learning rates were chosen for that.
    size = fitting_batch_size(model, config, largest=config.batch_size)
    if size is None:
        raise OutOfMemory(1, advice(None))
    watcher.note(
        f"batch size {size}, the largest up to {config.batch_size} that fits; "
        f"the learning rates stay the recipe's"
    )
    return _settled(plan, batch_size=size)


def _settled(plan: Plan, **found: Any) -> Plan:
    """Change settings of the plan, and the command that repeats the run."""
    options = "".join(f" --set {name}={value}" for name, value in found.items())
    return replace(plan, train=replace(plan.train, **found), command=f"{plan.command}{options}")
