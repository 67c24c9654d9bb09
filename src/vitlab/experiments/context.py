"""Context of an experiment: its data and budget, and the settings of each training."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlab.config import flat, from_dict, override, parse_json, to_dict
from vitlab.data.datasets import DataSource
from vitlab.errors import ConfigError
from vitlab.experiments.spec import MOST_STEPS, Arm, Experiment
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import write_json
from vitlab.jobs.finetune import situation
from vitlab.jobs.plan import Plan, model_config
from vitlab.jobs.start import fields_for
from vitlab.jobs.train import decide, split_changes
from vitlab.models.config import ViTConfig, pair
from vitlab.models.cost import without_memory
from vitlab.models.variants import ModelConfig, ResNetConfig
from vitlab.training.config import TrainConfig
from vitlab.training.pretraining import with_objective
from vitlab.training.progressive_resize import check_small_sizes, scaled, stages
from vitlab.training.recipes.finetune import finetuning
from vitlab.training.recipes.from_scratch import pretraining
from vitlab.training.step import Meter
from vitlab.training.trainable import prepare_learning, set_learning
from vitlab.weights.adapt import adapted_config

# The full configuration of an arm, which is checked, stored and compared before training.

DECIDING = ("how", "start", "weights", "new_head", "positions", "once", "budget")
"""Fields of an arm that affect its result and are part of no configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The whole configuration of an arm's trainings."""

    train: TrainConfig | None
    """None where nothing is trained."""
    model: ModelConfig


def after(before: Resolved, arm: Arm, settings: Mapping[str, Any], source: DataSource) -> Resolved:
    """Configuration of an arm that starts from the result of another."""
    if arm.how == "test" and not arm.image_size:
        return Resolved(train=None, model=before.model)
    stored = before.model
    if not isinstance(stored, ViTConfig):
        raise ConfigError(
            f"arm {arm.name!r}: {arm.start!r} is not a Vision Transformer; only these can "
            f"be fine-tuned, or evaluated at another size"
        )
    of_run, of_model = split_changes(settings)
    size = arm.image_size or None
    if arm.how == "test":
        model = adapted_config(stored, {"image_size": size}, stored.position_resize)
        return Resolved(train=None, model=model)
    wanted = fields_for(source, image_size=size, changes=of_model)
    wanted["classes"] = len(source.labels)
    model = adapted_config(stored, wanted, stored.position_resize)
    config = finetuning(situation(without_memory(model)[0], source, of_run))
    assert before.train is not None
    return Resolved(train=override(config, {"model": before.train.model, **of_run}), model=model)


def check_model(resolved: Resolved) -> None:
    """Build the model without allocating tensors, as a training would; raises if that fails."""
    model = learning_model(resolved)
    if resolved.train is not None:
        check_small_sizes(model, resolved.train)
        prepare_learning(model, resolved.train)


def learning_model(resolved: Resolved) -> nn.Module:
    """The module that is trained, on the meta device."""
    model, _ = without_memory(resolved.model)
    if resolved.train is None or resolved.train.objective is None:
        return model
    channels = resolved.model.channels
    plain = Preprocessing(size=(1, 1), mean=(0.0,) * channels, std=(1.0,) * channels)
    with torch.device("meta"):
        return with_objective(model, resolved.train, plain)


def usual(resolved: Resolved) -> dict[str, Any]:
    """Defaults of the fields of `described`, by dotted key."""
    model = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(resolved.model)
        if (field.default, field.default_factory) != (MISSING, MISSING)
    }
    return dict(flat({"train": to_dict(TrainConfig()), "model": model}))


def described(arm: Arm, resolved: Resolved, budget: Mapping[str, Any]) -> dict[str, Any]:
    """An arm's full configuration as JSON-able values, without the seed."""
    fields = to_dict(arm)
    train = None
    if resolved.train is not None:
        train = {k: v for k, v in to_dict(override(resolved.train, budget)).items() if k != "seed"}
    return {
        **{name: fields[name] for name in DECIDING},
        "train": train,
        "model": to_dict(resolved.model),
    }


FEWEST = 10
"""Minimum number of images per class in a share of the data: some of them are held out."""
SMOKE: dict[str, Any] = {
    "budget": 2.0,
    "budget_in": "steps",
    "batch_size": 10,
    "accumulate": 1,
    "evaluations": 1,
    "ema": 0.0,
    "checkpoint_every": 1000,
}
SMOKE_IMAGES = 30
"""Training images per class in a smoke run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """Steps and FLOPs of the first training, which the other arms match."""

    steps: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class Context:
    """An experiment with everything that its trainings share."""

    experiment: Experiment
    folder: Path
    data: str
    source: DataSource
    smallest_class: int
    """Number of training images of the smallest class."""
    minutes: float | None
    smoke: bool
    precision: str
    """Precision of every training whose arm sets none, also when continued on another machine."""

    def place(self, arm: str, seed: int) -> Path:
        """The folder of one training."""
        return self.folder / "arms" / arm / f"seed-{seed}"

    def settings(self, arm: Arm, seed: int) -> dict[str, Any]:
        """Changes of the recipe for one training, without its budget; minimal in a smoke run."""
        changes = {**self._shared(arm), **arm.changes, "seed": seed}
        if changes.get("precision", "auto") == "auto":
            changes["precision"] = self.precision
        count = self.images_per_class(arm)
        if count is not None:
            changes["images_per_class"] = count
        if not self.smoke:
            return changes
        small = {} if arm.start else shrunk(model_config(self.plan(arm, changes)))
        if changes.get("frozen_blocks"):
            small["frozen_blocks"] = 1
        return {**changes, **small, **SMOKE}

    def _shared(self, arm: Arm) -> Mapping[str, Any]:
        """Shared settings; an arm that starts from weights takes its model from them."""
        if not arm.start:
            return self.experiment.changes
        return {k: v for k, v in self.experiment.changes.items() if k.split(".")[0] != "model"}

    def images_per_class(self, arm: Arm) -> int | None:
        """Training images per class of an arm; None: all."""
        most = min(self.smallest_class, SMOKE_IMAGES) if self.smoke else self.smallest_class
        if arm.share == 1 and not self.smoke:
            return None
        count = round(arm.share * most)
        if self.smoke:
            return min(max(count, FEWEST), most)
        if count < FEWEST:
            raise ConfigError(
                f"arm {arm.name!r} learns from {count} of {most} images of a class; valid: "
                f"{FEWEST} or more, by more data or arms with a larger share (--arms)"
            )
        return count

    def budget(self, arm: Arm, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Length of the training, as changes of its recipe."""
        if self.smoke:
            return {}
        first = self.experiment.arms[0]
        anchor = None if self.experiment.matched == "minutes" else self.anchor
        if anchor is None and self.experiment.matched != "minutes" and arm != first:
            raise ConfigError(
                f"it takes the {self.experiment.matched} of {first.name}, which has not begun to "
                f"learn; the same command tries {first.name} again"
            )
        if anchor is None:
            return self.own_budget(arm, settings)
        steps = anchor.steps
        if self.experiment.matched == "compute":
            equal = anchor.flops / flops_per_step(self.resolved(arm, settings))
            steps = min(equal, MOST_STEPS * anchor.steps)
        return {"budget": float(max(round(arm.budget * steps), 1)), "budget_in": "steps"}

    def own_budget(self, arm: Arm, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Budget of the arm by itself: its part of the minutes, or that of the recipe."""
        if self.smoke:
            return {}
        if self.minutes is not None:
            return {"budget": arm.budget * self.minutes, "budget_in": "minutes"}
        config = self.resolved(arm, settings).train
        assert config is not None
        return {"budget": arm.budget * config.budget, "budget_in": config.budget_in}

    def plan(self, arm: Arm, settings: Mapping[str, Any]) -> Plan:
        """Plan of a training from scratch; raises if the settings are invalid."""
        recipe: str | TrainConfig = self.experiment.recipe
        if arm.objective:
            recipe = pretraining(arm.objective, model=settings.get("model"))
        return decide(recipe, self.data, self.source, self.folder, dict(settings))

    def resolved(self, arm: Arm, settings: Mapping[str, Any]) -> Resolved:
        """Full configuration of the arm without its budget; `before` is the arm it starts from."""
        if not arm.start:
            plan = self.plan(arm, settings)
            return Resolved(train=plan.train, model=model_config(plan))
        start = self.experiment.arm(arm.start)
        before = self.resolved(start, self.settings(start, 0))
        return after(before, arm, settings, self.source)

    def check(self) -> dict[str, dict[str, Any]]:
        """Full configuration of every arm; raises if settings are invalid."""
        found = {}
        for arm in self.experiment.arms:
            settings = self.settings(arm, 0)
            resolved = self.resolved(arm, settings)
            if resolved.train is not None and resolved.train.objective != (arm.objective or None):
                raise ConfigError(
                    f"arm {arm.name!r}: it learns by {resolved.train.objective}, without labels; "
                    f"valid: that in arms with how 'pretrain'"
                )
            check_model(resolved)
            budget = {} if resolved.train is None else self.own_budget(arm, settings)
            found[arm.name] = described(arm, resolved, budget)
        return found

    def usual(self, name: str) -> dict[str, Any]:
        """Defaults of an arm's fields."""
        arm = self.experiment.arm(name)
        return usual(self.resolved(arm, self.settings(arm, 0)))

    @property
    def anchor(self) -> Anchor | None:
        """Cost of the first training; None until its number of steps is decided."""
        path = self.folder / "anchor.json"
        if not path.is_file():
            return None
        try:
            return from_dict(Anchor, parse_json(path.read_text()))
        except ValueError as error:
            raise ConfigError(f"{path}: damaged ({error}); remove {self.folder}") from error

    def drop_anchor(self, arm: Arm, plan: Plan) -> None:
        """Store the cost of the first training."""
        wanted = self.experiment.matched != "minutes" and not self.smoke
        if wanted and self.anchor is None and arm == self.experiment.arms[0]:
            steps = plan.steps / arm.budget
            resolved = Resolved(train=plan.train, model=model_config(plan))
            anchor = Anchor(steps=steps, flops=steps * flops_per_step(resolved))
            write_json(self.folder / "anchor.json", to_dict(anchor))


def flops_per_step(resolved: Resolved) -> float:
    """Mean FLOPs of one update, from the log of a training."""
    config, model = resolved.train, learning_model(resolved)
    assert config is not None
    prepare_learning(model, config)
    meter, full = Meter(config), pair(resolved.model.image_size)
    flops, done = 0.0, 0.0
    for size, share in stages(config):
        shape = full if size is None else scaled(full, size)
        batch = (config.batch_size, resolved.model.channels, *shape)
        first = min(max(config.head_first - done, 0.0), share)
        for alone, part in ((True, first), (False, share - first)):
            if part:
                set_learning(model, config, 0 if alone else 1, 1)
                flops += part * meter.flops(model, batch, head_alone=alone)
        done += share
    return flops


def shrunk(config: ModelConfig) -> dict[str, Any]:
    """Changes that make a model of the same kind tiny."""
    if isinstance(config, ViTConfig):
        return {
            "model.width": 16,
            "model.heads": 2,
            "model.mlp_width": 24,
            "model.depth": min(config.depth, 1 + (config.pool_after or 1)),
            "model.conv_widths": [8] * len(config.conv_widths),
        }
    if isinstance(config, ResNetConfig):
        return {"model.width": 4, "model.layers": [1] * len(config.layers)}
    return {}
