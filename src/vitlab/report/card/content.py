"""Content of a model card, as plain data; missing values are None or empty."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from vitlab.config import to_dict
from vitlab.evaluation.metrics import wilson
from vitlab.images.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitlab.models.config import ViTConfig, pair
from vitlab.models.cost import Cost
from vitlab.models.variants import ModelConfig, ResNetConfig
from vitlab.objectives.objective import objective_of
from vitlab.report.numbers import duration, in_pflops, short

Kind = Literal["bundle", "run", "weights", "exported", "published"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One file of the model."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An accuracy, and its uncertainty over other images of the same kind."""

    split: str
    accuracy: float
    images: int | None
    """Number of images; None if not stored."""
    interval: tuple[float, float] | None
    """95 % confidence interval; None without the number of images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """All known facts about a model on disk."""

    path: Path
    kind: Kind
    format: str
    name: str | None
    """Name of the model in vitlab, or of the model that it is a variant of."""
    model: ModelConfig
    cost: Cost
    files: tuple[StoredFile, ...]
    task: str | None = None
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    zero_head: bool = False
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    exported: tuple[str, ...] = ()
    """Properties of an exported file."""

    @property
    def title(self) -> str:
        """Model and data of the training."""
        name = self.name or ("Vision Transformer" if self.cost.tokens else "convolutional network")
        data = self.provenance.get("data")
        return f"{name} on {Path(str(data)).name}" if data else name

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Every stored accuracy, that of the test images first."""
        found = [
            _measured(key.removesuffix("_accuracy"), value, self.metrics)
            for key, value in self.metrics.items()
            if key.endswith("_accuracy")
        ]
        return tuple(sorted(found, key=lambda item: item.split != "test"))

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "format": self.format,
            "title": self.title,
            "name": self.name,
            "task": self.task,
            "parameters": self.cost.parameters,
            "flops": self.cost.flops,
            "macs": self.cost.macs,
            "tokens": self.cost.tokens,
            "model": to_dict(self.model),
            "preprocessing": None if self.preprocessing is None else to_dict(self.preprocessing),
            "labels": None if self.labels is None else list(self.labels),
            "metrics": dict(self.metrics),
            "measured": [to_dict(item) for item in self.measured],
            "provenance": dict(self.provenance),
            "licence": self.licence,
            "zero_head": self.zero_head,
            "assumed": list(self.assumed),
            "ignored": list(self.ignored),
            "exported": list(self.exported),
            "files": [to_dict(file) for file in self.files],
        }


def _measured(split: str, accuracy: float, metrics: Mapping[str, float]) -> Measured:
    images = metrics.get(f"{split}_images")
    if images is None:
        return Measured(split=split, accuracy=accuracy, images=None, interval=None)
    count = int(images)
    interval = wilson(round(accuracy * count), count)
    return Measured(split=split, accuracy=accuracy, images=count, interval=interval)


# The card as text: sections of names and values, the same for a terminal and for Markdown.

NOT_STATED = "not stated"
SHOWN = 12
"""Number of labels that are listed."""
KINDS = {
    "bundle": "bundle",
    "run": "bundle of a run",
    "weights": "weight file",
    "exported": "exported file",
    "published": "published weights, not fetched",
}
WEIGHTS = {"ema": "the running average of training (EMA)", "raw": "as trained, not averaged"}
STATISTICS: dict[tuple[tuple[float, ...], tuple[float, ...]], str] = {
    (IMAGENET_MEAN, IMAGENET_STD): ", the statistics of ImageNet",
    (HALF, HALF): ", which maps to [-1, 1]",
}
IN_SECTIONS = {
    *("model", "recipe", "data", "seed", "command", "commit", "vitlab", "weights", "licence"),
    *("steps", "images_seen", "pflops", "minutes"),
}
"""Keys of the provenance that have their own rows."""

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading with its rows."""

    title: str
    rows: Rows


def sections(card: Card) -> tuple[Section, ...]:
    """All sections of the card, the most important first."""
    return (
        Section(title="What it is", rows=_identity(card)),
        Section(title="Labels", rows=_labels(card)),
        Section(title="Input and preprocessing", rows=_input(card)),
        Section(title="Measured", rows=_measurements(card)),
        Section(title="Data and recipe", rows=_recipe(card)),
        Section(title="Provenance and licence", rows=_provenance(card)),
        Section(title="Size and cost", rows=_cost(card)),
        Section(title="Files", rows=_files(card)),
    )


def _identity(card: Card) -> Rows:
    rows = [
        ("path", str(card.path)),
        ("kind", f"{KINDS[card.kind]}, format {card.format}"),
        ("model", describe(card)),
        ("settings", _unusual(card.model)),
    ]
    if card.model.classes:
        rows.append(("task", _task(card)))
    if card.zero_head:
        rows.append(("head", "all zeros: not trained"))
    elif not card.model.classes:
        rows.append(("head", "none: it returns features"))
    rows += [("assumed", note) for note in card.assumed]
    rows += [("left out", name) for name in card.ignored]
    rows += [("exported", note) for note in card.exported]
    return tuple(rows)


def describe(card: Card) -> str:
    """Description of the model in one line."""
    config, name = card.model, f"{card.name}: " if card.name else ""
    if isinstance(config, ViTConfig):
        patch = _sides(pair(config.patch_size))
        cut = f"patches of {patch}" if config.stem == "patch" else f"stem {config.stem}"
        size = f"width {config.width}, depth {config.depth}, {config.heads} heads"
        return f"{name}Vision Transformer, {size}, {cut}"
    if isinstance(config, ResNetConfig):
        blocks = ", ".join(map(str, config.layers))
        return f"{name}residual network, width {config.width}, blocks {blocks}"
    return f"{name}convolutional network of the PyTorch tutorial"


def _unusual(config: Any) -> str:
    """Fields without a default, and those that differ from it."""
    shown = (
        (field.name, getattr(config, field.name))
        for field in fields(config)
        if field.default is MISSING or getattr(config, field.name) != field.default
    )
    return " ".join(f"{name}={value}" for name, value in shown) or "all defaults"


def _labels(card: Card) -> Rows:
    count = (kind_of_outputs(card), f"{card.model.classes:,}")
    if card.labels is None:
        return (count, ("names", NOT_STATED))
    return (count, ("names", shortened(card.labels)))


def _task(card: Card) -> str:
    return NOT_STATED if card.task is None else objective_of(card.task).description


def kind_of_outputs(card: Card) -> str:
    """Kind of the outputs of a head."""
    return "values" if card.task and objective_of(card.task).has_values else "classes"


def shortened(labels: tuple[str, ...]) -> str:
    """First labels and the last; all if there are few."""
    if len(labels) <= SHOWN:
        return ", ".join(labels)
    left_out = len(labels) - SHOWN
    return f"{', '.join(labels[: SHOWN - 1])}, … ({left_out:,} more) …, {labels[-1]}"


def _input(card: Card) -> Rows:
    colours = {1: "grey", 3: "RGB"}.get(card.model.channels, f"{card.model.channels} channels")
    rows = [("input", f"{colours}, {_sides(pair(card.model.image_size))} pixels")]
    if card.preprocessing is None:
        return (*rows, ("preprocessing", NOT_STATED))
    return (*rows, *zip(("resize", "values"), in_words(card.preprocessing), strict=True))


def in_words(preparation: Preprocessing) -> tuple[str, str]:
    """Description of the resizing of an image and the scaling of its values."""
    size = _sides(preparation.size)
    before = [int(side / preparation.crop + 1e-6) for side in preparation.size]
    if not preparation.keep_aspect:
        resize = f"the whole image squeezed to {_sides(before)} ({preparation.interpolation})"
    elif before[0] == before[1]:
        resize = f"the shorter side resized to {before[0]} ({preparation.interpolation})"
    else:
        resize = f"resized to cover {_sides(before)} ({preparation.interpolation})"
    if preparation.keep_aspect or preparation.crop < 1.0:
        resize += f", then the middle {size} kept"
    mean, std = (", ".join(f"{x:.4g}" for x in v) for v in (preparation.mean, preparation.std))
    known = STATISTICS.get((preparation.mean, preparation.std), "")
    return resize, f"scaled to [0, 1], less mean {mean}, divided by deviation {std}{known}"


def _measurements(card: Card) -> Rows:
    if not card.metrics:
        return (("accuracy", NOT_STATED),)
    known = {item.split: item for item in card.measured}
    rows = [(f"{split} accuracy", accuracy_in_words(item)) for split, item in known.items()]
    for key, value in card.metrics.items():
        split, _, name = key.rpartition("_")
        if not (split in known and name in ("accuracy", "images")):
            rows.append((key.replace("_", " "), _number(value)))
    return tuple(rows)


def accuracy_in_words(item: Measured) -> str:
    """Accuracy with its interval and its meaning."""
    text = f"{item.accuracy:.2%}"
    if item.interval is not None:
        low, high = item.interval
        text += f" (95% interval {low:.2%} to {high:.2%}, {item.images:,} images)"
    return text + (", on images that chose the weights" if item.split == "validation" else "")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _recipe(card: Card) -> Rows:
    names = {"data": "data", "recipe": "recipe", "seed": "seed", "command": "command"}
    stated = ((name, _stated(card.provenance.get(key))) for key, name in names.items())
    return (*stated, *_spent(card.provenance))


def _spent(provenance: Mapping[str, Any]) -> Rows:
    """Cost of the training, as far as it was stored."""
    texts: dict[str, tuple[str, Callable[[float], str]]] = {
        "pflops": ("training compute", lambda value: in_pflops(1e15 * value)),
        "minutes": ("training time", lambda value: duration(60 * value)),
        "images_seen": ("images seen", "{:,}".format),
        "steps": ("steps", "{:,}".format),
    }
    return tuple(
        (name, write(value) if isinstance(value, int | float) else _stated(value))
        for key, (name, write) in texts.items()
        if (value := provenance.get(key)) is not None
    )


def _provenance(card: Card) -> Rows:
    weights = card.provenance.get("weights")
    others = (item for item in card.provenance.items() if item[0] not in IN_SECTIONS)
    return (
        ("licence", _stated(card.licence)),
        ("weights", WEIGHTS.get(str(weights), _stated(weights))),
        ("commit", _stated(card.provenance.get("commit"))),
        ("vitlab", _stated(card.provenance.get("vitlab"))),
        *((str(key).replace("_", " "), _stated(value)) for key, value in others),
    )


def _stated(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_stated(inner)}" for key, inner in value.items()) or NOT_STATED
    if isinstance(value, list | tuple):
        return ", ".join(map(_stated, value)) or NOT_STATED
    return NOT_STATED if value is None or value == "" else str(value)


def _cost(card: Card) -> Rows:
    cost = card.cost
    tokens = (("tokens", f"{cost.tokens:,}"),) if cost.tokens else ()
    return (
        ("parameters", f"{cost.parameters:,} ({short(cost.parameters)})"),
        ("FLOPs per image", f"{short(cost.flops)} (2 per multiply-add; {short(cost.macs)} MACs)"),
        *tokens,
    )


def _files(card: Card) -> Rows:
    return tuple((file.name, f"{short(file.bytes)}B  sha256 {file.sha256}") for file in card.files)


def _sides(size: Sequence[int]) -> str:
    """Width and height of a (height, width)."""
    return " × ".join(map(str, reversed(size)))
