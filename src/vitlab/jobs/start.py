"""Pretrained weights that a run starts from, and the teacher of a fine-tuning."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitlab.classify.classifier import load
from vitlab.config import parse
from vitlab.data.datasets import DataSource
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import Size, ViTConfig
from vitlab.models.vit import VisionTransformer
from vitlab.nn.init import init_zero
from vitlab.objectives.objective import objective_of
from vitlab.training.loop import Loader
from vitlab.training.teacher import DistillationLoader, Teacher
from vitlab.weights.bundle import find_bundle
from vitlab.weights.labels import matching
from vitlab.weights.load import load_weights
from vitlab.weights.preparation import Stated, read_stated, stating
from vitlab.weights.resolve import HUB, bundled_name, locate, named
from vitlab.weights.source import WeightSource

ADAPTED = ("classes", "channels", "image_size", "dropout", "attention_dropout", "drop_path")
"""Fields in which a fine-tuned model may differ from its weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Weights that a run starts from, their preprocessing, and a teacher, as stored in the plan."""

    weights: str
    preprocessing: Preprocessing
    new_head: bool = False
    """The whole head starts at zero, also classes that the weights know by name."""
    teacher: str | None = None
    teacher_share: float = 0.5
    """Share of the teacher's probabilities in each target."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """Opened weights and teacher of a `Start`; a run opens each once."""

    start: Start
    model: VisionTransformer | None
    """None: a checkpoint will replace the weights anyway."""
    teacher: Teacher | None

    def knows(self, labels: tuple[str, ...]) -> bool:
        """True if the head of the opened weights knows all these classes."""
        return self.model is not None and set(self.model.source.known_classes) == set(labels)

    def taught(self, loader: Loader, classes: int) -> Loader:
        """The loader, with the teacher's probabilities in its targets if there is a teacher."""
        if self.teacher is None:
            return loader
        return DistillationLoader(
            loader=loader,
            teacher=self.teacher,
            share=self.start.teacher_share,
            classes=classes,
            flops=self.teacher.flops,
        )


def open_start(
    start: Start,
    model: dict[str, Any],
    source: DataSource,
    device: torch.device,
    *,
    weights: bool,
) -> Started:
    """Open the start of a planned run; `weights`: its weights too, not only its teacher."""
    return Started(
        start=start,
        model=reopen(start, model, source) if weights else None,
        teacher=open_teacher(start, source, device),
    )


def reopen(start: Start, model: dict[str, Any], source: DataSource) -> VisionTransformer:
    """Load the weights of a planned run; `model` is the config in its plan."""
    fields = {key: _size(model[key]) for key in ADAPTED if key != "classes"}
    return _loaded(start.weights, source, start.new_head, fields)


def open_weights_for(
    weights: str,
    source: DataSource,
    *,
    image_size: Size | None,
    new_head: bool,
    changes: dict[str, Any],
    preprocessing: Stated | None = None,
) -> VisionTransformer:
    """Load a model with a head for the data's classes; `changes` are other fields of its config."""
    if preprocessing is not None:
        read_stated(preprocessing)
    wanted = fields_for(source, image_size=image_size, changes=changes)
    model = _loaded(weights, source, new_head, wanted)
    known = _with_statistics(model.source, source)
    model.source = stating(known, preprocessing, model.config)
    return model


def _loaded(
    weights: str, source: DataSource, new_head: bool, fields: dict[str, Any]
) -> VisionTransformer:
    """Load a model with a head for the data's classes, keeping what the weights know of them.

    Classes are matched by name; the head of labels is kept if all names are the same, a head of
    values never, since training standardises them. A head of equal size alone proves nothing.
    """
    if not new_head and source.task == "single-label":
        return load_weights(_place(weights), keep_classes=source.labels, **fields)
    model = load_weights(_place(weights), classes=len(source.labels), **fields)
    known = (model.source.task, model.source.labels)
    if new_head or objective_of(source.task).has_values or known != (source.task, source.labels):
        init_zero(cast(nn.Linear, model.head))
    else:
        model.source = replace(model.source, known_classes=source.labels)
    return model


def fields_for(
    source: DataSource, *, image_size: Size | None, changes: dict[str, Any]
) -> dict[str, Any]:
    """Fields of the model's config that fine-tuning changes, without the number of classes."""
    unknown = sorted(set(changes) - set(ADAPTED))
    if unknown:
        raise ConfigError(
            f"model.{unknown[0]}: the weights decide it; valid: {', '.join(sorted(ADAPTED))}"
        )
    wanted: dict[str, Any] = {"channels": source.channels}
    if image_size is not None:
        wanted["image_size"] = image_size
    for key, value in changes.items():
        wanted[key] = parse(ViTConfig, key, value) if isinstance(value, str) else value
    return wanted


def _with_statistics(known: WeightSource, source: DataSource) -> WeightSource:
    """Use the data's mean and deviation if the number of channels differs from the weights'."""
    if known.preprocessing is None or known.channels == source.channels:
        return known
    measured = replace(known.preprocessing, mean=source.mean, std=source.std)
    return replace(known, preprocessing=measured)


def absolute(weights: str | os.PathLike[str]) -> str:
    """Name, address or absolute path of weights, valid in any working directory."""
    given = os.fspath(weights)
    if named(given) is not None or given.startswith(HUB):
        return given
    inside = bundled_name(weights)
    return inside or os.path.abspath(os.path.expanduser(locate(weights)))


def open_teacher(start: Start, source: DataSource, device: torch.device) -> Teacher | None:
    """Open the teacher, a classifier that knows all classes of the data by name; None: no teacher.

    It predicts images that were prepared for the weights that the run starts from.
    """
    if start.teacher is None:
        return None
    path, prepared = start.teacher, start.preprocessing
    classifier = load(path)
    for what, task in (("data", source.task), (f"teacher {path}", classifier.source.task)):
        if task != "single-label":
            raise ConfigError(f"{what} is {task}; valid for a teacher: one class for each image")
    numbers = matching(classifier.labels, source.labels)
    missing = [
        label for label, number in zip(source.labels, numbers, strict=True) if number is None
    ]
    if missing:
        raise ConfigError(
            f"teacher {path} does not know {', '.join(missing[:3])}; "
            f"it knows {', '.join(classifier.labels[:3])} and others"
        )
    own = classifier.preprocessing
    if prepared.channels not in (1, own.channels):
        raise ConfigError(
            f"teacher {path} reads {own.channels} channels, and the images have "
            f"{prepared.channels}; valid: a teacher of as many"
        )
    return Teacher(
        model=classifier.model.to(device),
        size=own.size,
        mean=own.mean,
        std=own.std,
        prepared_with=(prepared.mean, prepared.std),
        classes=torch.tensor(numbers),
    )


def _place(weights: str) -> str | Path:
    return weights if named(weights) is not None else find_bundle(locate(weights))


def _size(value: Any) -> Any:
    """Size as a pair: JSON stores it as a list."""
    return tuple(value) if isinstance(value, list) else value
