"""What an arm starts from: a trained model, perhaps at another size, or partly begun anew."""

from dataclasses import replace
from pathlib import Path

import torch

from vitlab.classify.classifier import Classifier, load
from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet
from vitlab.data.random import seed_for
from vitlab.errors import ConfigError, DataError
from vitlab.experiments.probes import told_right
from vitlab.experiments.spec import Arm
from vitlab.models.build import create_model
from vitlab.models.cost import Cost, cost
from vitlab.registry import DATASETS
from vitlab.weights.bundle import save_bundle
from vitlab.weights.bundle_files import is_bundle

POSITIONS = "positions."
"""What the names of learned tables begin with."""


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
    """What fine-tuning starts from: the run itself, or a bundle that begins anew, or some of it."""
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


def judge_at(run: Path, arm: Arm, seed: int, source: DataSource) -> tuple[tuple[bool, ...], Cost]:
    """Which test images are told right at the arm's size, and what the model costs."""
    classifier = at_size(run, arm, seed)
    assert source.open_test is not None
    return told_right(classifier, source.open_test()), cost(classifier.model)


# Data by halves of its classes: features are learnt from one half and judged by the other.

LEARNT, OTHERS = ":first-classes", ":last-classes"
"""Endings of the names that the halves have while an experiment runs."""

SHOTS = 5
"""Images of a class that a linear classifier gets."""


def halve(data: str, source: DataSource) -> DataSource:
    """Make the halves known by name; the first is returned."""
    count = len(source.labels)
    if count < 4:
        raise DataError(f"{source.name} has {count} classes; valid: 4 or more, to learn from half")
    first, last = part(source, 0, count // 2), part(source, count // 2, count)
    fewest, name = min(zip(images_of_classes(last), last.labels, strict=True))
    if fewest < SHOTS:
        raise DataError(
            f"{source.name} has {fewest} training images of {name}; valid: {SHOTS} or more, which "
            f"tell a class that was not learnt"
        )
    DATASETS[f"{data}{LEARNT}"] = lambda: first
    DATASETS[f"{data}{OTHERS}"] = lambda: last
    return first


def part(source: DataSource, begin: int, end: int) -> DataSource:
    """The classes from one number to another, numbered from 0."""

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
