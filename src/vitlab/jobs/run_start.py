"""What a run starts from: weights of its own, or anybody's, perhaps whitened or with a teacher."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitlab.classify.classifier import load
from vitlab.config import parse
from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet
from vitlab.data.loading.loader import batches_for_evaluation
from vitlab.data.random import generator
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs.run_folder import Start
from vitlab.models.config import Size, ViTConfig
from vitlab.models.vit import VisionTransformer
from vitlab.nn.init import init_zero
from vitlab.nn.stem import ConvEmbed
from vitlab.training.config import TrainConfig
from vitlab.training.loop import Loader
from vitlab.training.teacher import TaughtLoader, Teacher
from vitlab.training.whiten import first_layer, whiten
from vitlab.weights.bundle_files import find_bundle
from vitlab.weights.bundled import bundled_name
from vitlab.weights.load import load_weights
from vitlab.weights.published import locate, named
from vitlab.weights.source import WeightSource

ADAPTED = ("classes", "channels", "image_size", "dropout", "attention_dropout", "drop_path")
"""Fields in which a fine-tuned model may differ from its weights."""


WHITENED_AT_ONCE = 32
"""Images whose patches are in memory at the same time."""


def open_weights_for(
    weights: str,
    source: DataSource,
    *,
    image_size: Size | None,
    new_head: bool,
    changes: dict[str, Any],
) -> VisionTransformer:
    """The model with a head for the data's classes; `changes` are further fields of its config."""
    wanted = fields_for(source, image_size=image_size, changes=changes)
    model = _loaded(weights, source, new_head, wanted)
    model.source = _with_statistics(model.source, source)
    return model


def _loaded(
    weights: str, source: DataSource, new_head: bool, fields: dict[str, Any]
) -> VisionTransformer:
    """The model with a head for the data's classes; what the weights know of any of them is kept.

    Classes are known by name, labels where all are the same; values never, since what is learnt of
    them is standardised. A head that happens to be as large knows something else.
    """
    if not new_head and source.task == "single-label":
        return load_weights(_place(weights), keep_classes=source.labels, **fields)
    model = load_weights(_place(weights), classes=len(source.labels), **fields)
    known = (model.source.task, model.source.labels)
    if new_head or source.task == "regression" or known != (source.task, source.labels):
        init_zero(cast(nn.Linear, model.head))
    return model


def fields_for(
    source: DataSource, *, image_size: Size | None, changes: dict[str, Any]
) -> dict[str, Any]:
    """Fields of a config that fine-tuning changes, but for the classes."""
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
    """The weights know the statistics of their own channels; of others only the data does."""
    if known.preprocessing is None or known.channels == source.channels:
        return known
    measured = replace(known.preprocessing, mean=source.mean, std=source.std)
    return replace(known, preprocessing=measured)


def reopen(start: Start, model: dict[str, Any], source: DataSource) -> VisionTransformer:
    """The model that a run begins with, as its plan describes it."""
    fields = {key: _size(model[key]) for key in ADAPTED if key != "classes"}
    return _loaded(start.weights, source, start.new_head, fields)


def check_whitening(model: nn.Module, config: TrainConfig, start: Start | None) -> None:
    """Refuse a whitened first layer where there is no place for one."""
    if not config.whiten:
        return
    first_layer(model)
    if start is not None:
        raise ConfigError(
            f"whiten {config.whiten} is for a first layer that starts at random, and "
            f"{start.weights} has learnt its own; valid: whiten=0"
        )


def start_white(
    model: nn.Module, images: ImageSet, config: TrainConfig, preprocessing: Preprocessing
) -> None:
    """Whiten the first layer by training images drawn with the seed, all if they are fewer."""
    order = torch.randperm(len(images), generator=generator(config.seed, "whiten"))
    batches = batches_for_evaluation(
        images.subset(order[: config.whiten]),
        batch_size=WHITENED_AT_ONCE,
        preprocessing=preprocessing,
        workers=config.workers,
        broken={},  # whoever opened the images has told of them
    )
    activated = isinstance(model.stem, ConvEmbed)
    whiten(first_layer(model), (batch.images for batch in batches), paired=activated)


def absolute(weights: str | os.PathLike[str]) -> str:
    """The same weights wherever the command is repeated: a name, or a whole path."""
    given = os.fspath(weights)
    if named(given) is not None:
        return given
    inside = bundled_name(weights)
    return inside or os.path.abspath(os.path.expanduser(locate(weights)))


def with_teacher(loader: Loader, start: Start, source: DataSource, device: torch.device) -> Loader:
    """The loader, with the teacher's opinion in its targets if there is a teacher."""
    if start.teacher is None:
        return loader
    teacher = open_teacher(start.teacher, source, start.preprocessing, device)
    return TaughtLoader(
        loader=loader,
        teacher=teacher,
        share=start.teacher_share,
        classes=len(source.labels),
        flops=teacher.flops,
    )


def open_teacher(
    path: str, source: DataSource, prepared: Preprocessing, device: torch.device
) -> Teacher:
    """A classifier that knows the data's classes, by name."""
    classifier = load(path)
    for what, task in (("data", source.task), (f"teacher {path}", classifier.source.task)):
        if task != "single-label":
            raise ConfigError(f"{what} is {task}; valid for a teacher: one class for each image")
    missing = [label for label in source.labels if label not in classifier.labels]
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
        classes=torch.tensor([classifier.labels.index(label) for label in source.labels]),
    )


def _place(weights: str) -> str | Path:
    return weights if named(weights) is not None else find_bundle(locate(weights))


def _size(value: Any) -> Any:
    """JSON has lists where a size has a pair."""
    return tuple(value) if isinstance(value, list) else value
