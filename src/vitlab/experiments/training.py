"""One arm with one seed: train, fine-tune or evaluate it, and store the result."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from vitlab.classify.classifier import Classifier, load
from vitlab.config import from_dict, to_dict
from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet
from vitlab.data.order import seed_for
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classification import Evaluation
from vitlab.experiments.context import Context
from vitlab.experiments.folder import Result, pack, read_result, write_result
from vitlab.experiments.probes import correct_images, probe
from vitlab.experiments.spec import Arm
from vitlab.jobs.fewshot import fewshot
from vitlab.jobs.finetune import finetune
from vitlab.jobs.plan import Plan, model_config, plan_path, read_plan
from vitlab.jobs.run_result import RunResult
from vitlab.jobs.train import pretrain, train
from vitlab.jobs.training_run import Watcher
from vitlab.machine.world import by_first, open_world
from vitlab.models.cost import Cost, cost
from vitlab.models.variants import create_model
from vitlab.registry import DATASETS
from vitlab.training.loop import RunFiles
from vitlab.weights.bundle import WEIGHTS, is_bundle, save_bundle

POSITIONS = "positions."
"""Prefix of the names of learned position tables."""


def at_size(run: Path, arm: Arm, seed: int) -> Classifier:
    """The model of a run for images of the arm's size."""
    classifier = load(run, image_size=arm.image_size) if arm.image_size else load(run)
    if arm.weights == "fresh":
        torch.manual_seed(seed_for(seed, "fresh weights"))
        classifier.model.load_state_dict(create_model(classifier.model.config).state_dict())
    elif arm.positions == "fresh":
        torch.manual_seed(seed_for(seed, "fresh positions"))
        new = create_model(classifier.model.config).state_dict()
        fresh = {name: value for name, value in new.items() if name.startswith(POSITIONS)}
        if not fresh:
            raise ConfigError(f"{run}: positions 'fresh' of a model without learned positions")
        classifier.model.load_state_dict({**classifier.model.state_dict(), **fresh})
    return classifier


def start_at(run: Path, arm: Arm, seed: int, folder: Path) -> Path:
    """Start of fine-tuning: the run itself, or a bundle with some or all weights reinitialised."""
    if arm.positions == "resized" and arm.weights == "learnt":
        return run
    place = folder / f"seed-{seed}"
    if not is_bundle(place):
        found = at_size(run, arm, seed)
        save_bundle(
            place,
            found.model,
            preprocessing=found.preprocessing,
            labels=found.labels,
            metrics={},
            provenance={"from": str(run)},
        )
    return place


def evaluate_at(
    run: Path, arm: Arm, seed: int, source: DataSource
) -> tuple[tuple[bool, ...], Cost]:
    """Per-image correctness on the test images at the arm's size, and the cost of the model."""
    classifier = at_size(run, arm, seed)
    assert source.open_test is not None
    return correct_images(classifier, source.open_test()), cost(classifier.model)


# Data split by class into halves: features are trained on one and evaluated on the other.

LEARNT, OTHERS = ":first-classes", ":last-classes"
"""Suffixes of the names of the halves while an experiment runs."""

SHOTS = 5
"""Training images per class of the linear classifier."""


def halve(data: str, source: DataSource) -> DataSource:
    """Register the halves by name and return the first."""
    count = len(source.labels)
    if count < 4:
        raise DataError(f"{source.name} has {count} classes; valid: 4 or more, to learn from half")
    first, last = part(source, 0, count // 2), part(source, count // 2, count)
    fewest, name = min(zip(images_of_classes(last), last.labels, strict=True))
    if fewest < SHOTS:
        raise DataError(
            f"{source.name} has {fewest} training images of {name}; valid: {SHOTS} or more, for "
            f"the few-shot classifier"
        )
    DATASETS[f"{data}{LEARNT}"] = lambda: first
    DATASETS[f"{data}{OTHERS}"] = lambda: last
    return first


def part(source: DataSource, begin: int, end: int) -> DataSource:
    """A range of classes, renumbered from 0."""

    def only(images: ImageSet) -> ImageSet:
        index = ((images.labels >= begin) & (images.labels < end)).nonzero()[:, 0]
        found = images.subset(index)
        return replace(found, labels=found.labels - begin)

    test = source.open_test
    return replace(
        source,
        name=f"{source.name}, classes {begin + 1} to {end}",
        labels=source.labels[begin:end],
        open_train=lambda: only(source.open_train()),
        open_test=None if test is None else lambda: only(test()),
    )


def images_of_classes(source: DataSource) -> tuple[int, ...]:
    """Training images of each class."""
    labels = source.open_train().labels
    return tuple(torch.bincount(labels, minlength=len(source.labels)).tolist())


# One training: run it and store its result.

DRAWS, SMOKE_DRAWS = 10, 2
"""Number of few-shot draws."""


def complete(context: Context, arm: Arm, seed: int, watcher: Watcher) -> None:
    """Start or continue one training and store its result; a finished one is not repeated.

    Several processes train together; the first of them does the rest.
    """
    place = context.place(arm.name, seed)
    if by_first(lambda: read_result(place) is not None, open_world()):
        return
    learn = {"test": _test, "pretrain": _pretrain}.get(arm.how, _learn)
    result = learn(context, arm, seed, watcher)

    def store() -> None:
        write_result(place, result)
        drop_checkpoints(place)

    by_first(store, open_world())


def _in_all(work: Callable[[], Result]) -> Result:
    """Result of work that the first process does, in all of them."""
    return from_dict(Result, by_first(lambda: to_dict(work()), open_world()))


def drop_checkpoints(place: Path) -> None:
    """Remove the checkpoints of a training that has a result."""
    shutil.rmtree(place / "checkpoints", ignore_errors=True)


def _learn(context: Context, arm: Arm, seed: int, watcher: Watcher) -> Result:
    run = _run(context, arm, seed, watcher)
    assert isinstance(run.evaluation, Evaluation)
    found = replace(
        _spent(arm, seed, run),
        value=run.evaluation.accuracy,
        held_out=_held_out(run),
        images=run.evaluation.images,
        right=pack(run.right or ()),
    )

    def measured() -> Result:
        few = context.experiment.measure == "few-shot"
        own = _few_shot(context, found, run.folder) if few else found
        probes = probe(context.experiment.probes, run.folder, context.source, context.smoke)
        return replace(own, probes=probes)

    return _in_all(measured)


def _held_out(run: RunResult) -> float | None:
    """Metric that the best weights were chosen by: accuracy, or balanced accuracy."""
    names = ("validation_balanced", "validation_accuracy")
    return next((run.metrics[name] for name in names if name in run.metrics), None)


def _pretrain(context: Context, arm: Arm, seed: int, watcher: Watcher) -> Result:
    """Pretrain without labels: no accuracy, except few-shot accuracy of the features."""
    run = _run(context, arm, seed, watcher)
    found = _spent(arm, seed, run)
    if context.experiment.measure != "few-shot":
        return found
    return _in_all(lambda: _few_shot(context, found, run.folder))


def _spent(arm: Arm, seed: int, run: RunResult) -> Result:
    """Result with the cost of a training, without a value."""
    size = cost(model_config(read_plan(run.folder)))
    return Result(
        arm=arm.name,
        seed=seed,
        value=None,
        held_out=None,
        images=0,
        parameters=size.parameters,
        forward=size.flops,
        steps=run.compute.steps,
        images_seen=run.compute.images,
        pflops=run.compute.flops / 1e15,
        minutes=run.compute.seconds / 60,
    )


def _run(context: Context, arm: Arm, seed: int, watcher: Watcher) -> RunResult:
    """Start or continue the training."""
    place = context.place(arm.name, seed)

    world = open_world()

    def begin(plan: Plan, files: RunFiles) -> None:
        by_first(lambda: context.drop_anchor(arm, plan), world)
        watcher.begin(plan, files)

    watched = replace(watcher, begin=begin)
    if by_first(lambda: plan_path(place).is_file(), world):
        return train(out=place, resume=True, watcher=watched)
    settings = context.settings(arm, seed)
    settings |= context.budget(arm, settings)
    if arm.how == "train":
        data = _data(context)
        return train(
            context.experiment.recipe, data=data, out=place, changes=settings, watcher=watched
        )
    if arm.how == "pretrain":
        data = _data(context)
        return pretrain(arm.objective, data=data, out=place, changes=settings, watcher=watched)

    def start() -> str:
        place = context.folder / "starts" / arm.name
        return str(start_at(_start(context, arm, seed), arm, seed, place))

    return finetune(
        by_first(start, world),
        data=_data(context),
        out=place,
        image_size=arm.image_size or None,
        new_head=arm.new_head,
        changes=settings,
        watcher=watched,
    )


def _data(context: Context) -> str:
    return f"{context.data}{LEARNT}" if context.experiment.measure == "few-shot" else context.data


def _start(context: Context, arm: Arm, seed: int) -> Path:
    """Folder of the run that an arm starts from."""
    own = 0 if context.experiment.arm(arm.start).once else seed
    place = context.place(arm.start, own)
    if read_result(place) is None:
        raise ConfigError(f"it starts from {arm.start}, seed {own}, which has no result")
    if not (place / "bundle" / WEIGHTS).is_file():
        raise ConfigError(
            f"it starts from {arm.start}, seed {own}, whose weights are not here; copy its bundle "
            f"to {place}, as keep-experiment --weights does, or remove {place} to train it again"
        )
    return place


def _few_shot(context: Context, found: Result, model: Path) -> Result:
    """Result with the few-shot accuracy on classes not seen in training."""
    scores = fewshot(
        model,
        f"{context.data}{OTHERS}",
        shots=(SHOTS,),
        draws=SMOKE_DRAWS if context.smoke else DRAWS,
        seed=found.seed,
        methods=("least-squares",),
    )
    (score,) = scores.scores
    return replace(
        found, value=score.mean, images=scores.test_images, right="", draws=score.accuracies
    )


def _test(context: Context, arm: Arm, seed: int, watcher: Watcher) -> Result:
    def tested() -> Result:
        right, size = evaluate_at(_start(context, arm, seed), arm, seed, context.source)
        return Result(
            arm=arm.name,
            seed=seed,
            value=sum(right) / len(right),
            held_out=None,
            images=len(right),
            right=pack(right),
            parameters=size.parameters,
            forward=size.flops,
        )

    return _in_all(tested)
