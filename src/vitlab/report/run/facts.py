"""Tables of model, data, cost, and reproduction."""

from collections.abc import Iterable, Mapping
from typing import Any

from vitlab.report.html import Html, duration, element, in_pflops, short
from vitlab.report.run.content import Compute, Data, Model

FOLDED_FROM = 12
"""Number of broken images from which on the list is folded."""

Rows = list[tuple[str, str]]


def model_facts(model: Model) -> Rows:
    """Rows about the model."""
    tokens = [] if model.tokens is None else [("tokens", f"{model.tokens:,}")]
    return [
        ("model", model.name),
        ("parameters", f"{model.parameters:,}"),
        ("FLOPs per image", f"{short(model.flops)} ({short(model.flops / 2)} MACs)"),
        *tokens,
        *model.details.items(),
    ]


def data_facts(data: Data) -> Rows:
    """Rows about the data."""
    size = [] if data.size is None else [("image size", data.size)]
    augmentation = []
    if data.augmentation is not None:
        augmentation = [("augmentation", ", ".join(data.augmentation) or "none")]
    return [
        ("data", data.name),
        (data.counted, f"{data.classes:,}"),
        *((f"{split} images", _counted(data, split)) for split in data.images),
        *size,
        *augmentation,
        *data.details.items(),
    ]


def _counted(data: Data, split: str) -> str:
    """Number of images of a split, with the range over the classes."""
    found = data.per_class.get(split)
    return f"{data.images[split]:,}" + ("" if found is None else f" ({found})")


def compute_facts(compute: Compute) -> Rows:
    """Rows about the cost."""
    speed = compute.images / compute.seconds if compute.seconds else 0.0
    return [
        ("training compute", in_pflops(compute.flops).replace(" ", "\u00a0")),
        ("wall time", duration(compute.seconds)),
        ("steps", f"{compute.steps:,}"),
        ("images seen", f"{compute.images:,}"),
        ("speed, with evaluation", f"{speed:,.0f} images/s"),
        ("device", compute.device),
        *compute.details.items(),
    ]


def pairs(rows: Iterable[tuple[str, str]], title: str | None = None) -> Html:
    """A table of names and values."""
    lines = (element("tr", element("th", name), element("td", value)) for name, value in rows)
    head = None if title is None else element("h3", title)
    return element("div", head, element("table", *lines, class_="pairs"))


def list_broken(broken: Mapping[str, str]) -> Html:
    """List the images that were left out, with the reason."""
    if not broken:
        return element("p", "Every image could be read.")
    count = f"{len(broken):,} image{'s' if len(broken) > 1 else ''} could not be read"
    rows = (
        element("tr", element("td", element("code", name)), element("td", reason))
        for name, reason in broken.items()
    )
    table = element("table", *rows, class_="list broken")
    if len(broken) < FOLDED_FROM:
        return element("div", element("p", f"{count} and took no part."), table)
    return element("details", element("summary", f"{count} and took no part"), table)


def fold_config(config: Mapping[str, Any]) -> Html:
    """All settings with their dotted keys, folded."""
    rows = [(key, _written(value)) for key, value in flatten(config)]
    summary = element("summary", f"Complete configuration ({len(rows)} settings)")
    return element("details", summary, pairs(rows))


def flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and their values, in order."""
    flat: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat += flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == {} else str(value)
