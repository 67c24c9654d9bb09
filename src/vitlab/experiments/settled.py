"""What an arm is to the last field, so that it can be refused, stored and compared beforehand."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import torch
from torch import nn

from vitlab.config import flat, override, to_dict
from vitlab.data.datasets import DataSource
from vitlab.errors import ConfigError
from vitlab.experiments.spec import Arm
from vitlab.models.config import ViTConfig
from vitlab.models.flops import without_memory
from vitlab.models.variants import ModelConfig
from vitlab.preprocessing import Preprocessing
from vitlab.recipes.finetune import finetuning
from vitlab.tasks.finetune import situation
from vitlab.tasks.start import fields_for
from vitlab.tasks.train import split_changes
from vitlab.train.config import TrainConfig
from vitlab.train.learning import prepare_learning
from vitlab.train.pretraining import with_objective
from vitlab.train.small_images import check_small_sizes
from vitlab.weights.adapt import adapted_config

DECIDING = ("how", "start", "weights", "new_head", "positions", "once", "budget")
"""Fields of an arm that decide what comes of it and are in no configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The whole configuration of an arm's trainings."""

    train: TrainConfig | None
    """None where nothing is trained."""
    model: ModelConfig


def after(before: Settled, arm: Arm, settings: Mapping[str, Any], source: DataSource) -> Settled:
    """An arm that starts from what another came to."""
    if arm.how == "test" and not arm.image_size:
        return Settled(train=None, model=before.model)
    stored = before.model
    if not isinstance(stored, ViTConfig):
        raise ConfigError(
            f"arm {arm.name!r}: {arm.start!r} is no Vision Transformer, which alone can be "
            f"fine-tuned or judged at another size"
        )
    of_run, of_model = split_changes(settings)
    size = arm.image_size or None
    if arm.how == "test":
        model = adapted_config(stored, {"image_size": size}, stored.position_resize)
        return Settled(train=None, model=model)
    wanted = fields_for(source, image_size=size, changes=of_model)
    wanted["classes"] = len(source.labels)
    model = adapted_config(stored, wanted, stored.position_resize)
    config = finetuning(situation(without_memory(model)[0], source, of_run))
    assert before.train is not None
    return Settled(train=override(config, {"model": before.train.model, **of_run}), model=model)


def check_model(settled: Settled) -> None:
    """Build the model without memory, as a training would: an error where it cannot be."""
    model = learning_model(settled)
    if settled.train is not None:
        check_small_sizes(model, settled.train)
        prepare_learning(model, settled.train)


def learning_model(settled: Settled) -> nn.Module:
    """What the updates go through, without memory."""
    model, _ = without_memory(settled.model)
    if settled.train is None or settled.train.objective is None:
        return model
    channels = settled.model.channels
    plain = Preprocessing(size=(1, 1), mean=(0.0,) * channels, std=(1.0,) * channels)
    with torch.device("meta"):
        return with_objective(model, settled.train, plain)


def usual(settled: Settled) -> dict[str, Any]:
    """What fields of `described` are, as dotted keys, where nobody says otherwise."""
    model = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(settled.model)
        if (field.default, field.default_factory) != (MISSING, MISSING)
    }
    return dict(flat({"train": to_dict(TrainConfig()), "model": model}))


def described(arm: Arm, settled: Settled, budget: Mapping[str, Any]) -> dict[str, Any]:
    """The same as JSON-able values, but for the seed."""
    fields = to_dict(arm)
    train = None
    if settled.train is not None:
        train = {k: v for k, v in to_dict(override(settled.train, budget)).items() if k != "seed"}
    return {
        **{name: fields[name] for name in DECIDING},
        "train": train,
        "model": to_dict(settled.model),
    }
