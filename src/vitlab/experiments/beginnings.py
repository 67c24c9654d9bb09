"""What an arm starts from: a trained model, perhaps at another size, or partly begun anew."""

from pathlib import Path

import torch

from vitlab.data.datasets import DataSource
from vitlab.data.random import seed_for
from vitlab.errors import ConfigError
from vitlab.experiments.spec import Arm
from vitlab.experiments.told import told_right
from vitlab.inference.classifier import Classifier, load
from vitlab.models.flops import Cost, cost
from vitlab.models.registry import create_model
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
