"""What a report says of a model, of data and of augmentation, read off the objects themselves."""

from collections.abc import Mapping
from dataclasses import fields

from torch import nn

from vitlab.data.augment_config import AugmentConfig
from vitlab.data.class_counts import ClassCounts
from vitlab.data.datasets import DataSource
from vitlab.models.config import ViTConfig, pair
from vitlab.models.flops import cost, image_shape
from vitlab.models.merging import MergingTransformer
from vitlab.tasks.report.content import Data, Model

COUNTED = {"single-label": "classes", "multi-label": "labels", "regression": "values"}


def describe_model(name: str, model: nn.Module, details: Mapping[str, str] | None = None) -> Model:
    """Size, cost and shape of a model of vitlab's."""
    found = cost(model)
    return Model(
        name=name,
        parameters=found.parameters,
        flops=found.flops,
        tokens=found.tokens,
        details={**_shape(model), **(details or {})},
    )


def describe_data(
    source: DataSource,
    images: Mapping[str, int] | Mapping[str, ClassCounts],
    *,
    augment: AugmentConfig | None = None,
    details: Mapping[str, str] | None = None,
) -> Data:
    """Name, classes and size of the data; `images` by split."""
    size = None if source.image_size is None else (*source.image_size, source.channels)
    return Data(
        name=source.name,
        classes=len(source.labels),
        counted=COUNTED[source.task],
        images={n: c.images if isinstance(c, ClassCounts) else c for n, c in images.items()},
        per_class={
            name: found.per_class
            for name, found in images.items()
            if isinstance(found, ClassCounts) and found.per_class is not None
        },
        size="files of any size" if size is None else " × ".join(map(str, size)),
        augmentation=None if augment is None else augmentations(augment),
        details=details or {},
    )


def augmentations(config: AugmentConfig) -> tuple[str, ...]:
    """What is switched on, as `name value`."""
    plain = AugmentConfig()
    changed = (field.name for field in fields(config))
    return tuple(
        f"{name.replace('_', ' ')} {_written(getattr(config, name))}"
        for name in changed
        if getattr(config, name) != getattr(plain, name)
    )


def _shape(model: nn.Module) -> dict[str, str]:
    channels, height, width = image_shape(model)
    rows = {"input": f"{height} × {width} × {channels}"}
    config = getattr(model, "config", None)
    if isinstance(config, ViTConfig):
        patch = " × ".join(map(str, pair(config.patch_size)))
        rows |= {
            "encoder": f"width {config.width}, depth {config.depth}, {config.heads} heads",
            "patch": patch if config.stem == "patch" else f"{patch}, stem {config.stem}",
            "position, pool": f"{config.position}, {config.pool}",
        }
    if isinstance(model, MergingTransformer):
        rows["merged tokens"] = f"{model.merge_tokens} in each block"
    return rows


def _written(value: object) -> str:
    return " to ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
