"""What commands print of an evaluation, task by task."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vitlab.cli.output import print_line, print_table

SHOWN = 20
"""Classes that the table has room for; of more, the weakest are shown."""
Lines = list[tuple[str, str]]


def headline(found: Any) -> str:
    """One line: the figure that counts, and its interval."""
    return HEADLINES[found.task](found)


def pretraining_headline(split: str, metrics: Mapping[str, float]) -> str:
    """One line about what was learnt without labels."""
    found = {name.removeprefix(f"{split}_"): value for name, value in metrics.items()}
    told = f"R2 {found['r2']:.3f}" if "r2" in found else f"{found['colours_right']:.1%} right"
    images = f"{found['images']:,} images"
    return f"{split} loss {found['loss']:.3f}, {told} of hidden patches ({images})"


def lines(found: Any) -> Lines:
    """Names and figures."""
    return LINES[found.task](found)


def print_details(found: Any) -> None:
    """The table of classes, labels or values."""
    TABLES[found.task](found)


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _between(interval: Sequence[float] | None, write: Callable[[float], str] = _number) -> str:
    if interval is None:
        return ""
    low, high = interval
    return f" (95% interval {write(low)} to {write(high)})"


def _class_headline(found: Any) -> str:
    low, high = found.interval
    return f"accuracy {found.accuracy:.2%} ({low:.1%} to {high:.1%}, {found.images:,} images)"


def _label_headline(found: Any) -> str:
    low, high = found.interval
    images = f"{found.images:,} images"
    return f"mean average precision {found.map:.2%} ({low:.1%} to {high:.1%}, {images})"


def _value_headline(found: Any) -> str:
    first = found.values[0]
    low, high = first.mae_interval
    return (
        f"mean absolute error {first.mae:.4g} ({low:.4g} to {high:.4g}, {found.images:,} images), "
        f"R2 {_number(first.r2)}; always the mean: {first.mean_mae:.4g}"
    )


def _class_lines(found: Any) -> Lines:
    low, high = found.interval
    shown = [("accuracy", f"{found.accuracy:.2%} (95% interval {low:.2%} to {high:.2%})")]
    if found.top < len(found.labels):
        shown.append((f"top-{found.top}", f"{found.top5:.2%}"))
    shown += [
        ("balanced accuracy", f"{found.balanced:.2%}"),
        ("loss", f"{found.loss:.4f}"),
        ("calibration error", f"{found.reliability.ece:.2%}"),
    ]
    if found.scaled is not None:
        scaled = found.scaled
        images = f"{scaled.temperature.images:,} held-out images"
        shown += [
            ("temperature", f"{scaled.temperature.value:.3f} (fitted on {images})"),
            ("with it", f"loss {scaled.loss:.4f}, calibration error {scaled.reliability.ece:.2%}"),
        ]
    return shown


def _label_lines(found: Any) -> Lines:
    interval = _between(found.interval, "{:.2%}".format)
    return [
        ("mean average precision", f"{found.map:.2%}{interval}, by chance {found.chance:.2%}"),
        ("micro F1", f"{_share(found.micro_f1)} (labels from {found.threshold:.0%} on)"),
        ("macro F1", _share(found.macro_f1)),
        ("all labels right", f"{found.exact:.2%}"),
        ("loss", f"{found.loss:.4f}"),
    ]


def _value_lines(found: Any) -> Lines:
    shown: Lines = []
    for item in found.values:
        of = "" if len(found.values) == 1 else f" of {item.label}"
        mean = f", always the mean {item.mean_mae:.4g}"
        shown += [
            (f"mean absolute error{of}", f"{item.mae:.4g}{_between(item.mae_interval)}{mean}"),
            (f"root mean squared{of}", f"{item.rmse:.4g}{_between(item.rmse_interval)}"),
            (f"R2{of}", f"{_number(item.r2)}{_between(item.r2_interval)}"),
            (f"rank correlation{of}", _number(item.spearman)),
        ]
    return shown


def _print_classes(found: Any) -> None:
    _print_weakest(
        found.classes,
        ("class", "precision", "recall", "F1", "images"),
        lambda item: (item.precision, item.recall, item.f1),
        lambda item: item.f1 or 0.0,
        "classes",
    )


def _print_labels(found: Any) -> None:
    _print_weakest(
        found.classes,
        ("label", "average precision", "precision", "recall", "F1", "images"),
        lambda item: (item.average_precision, item.precision, item.recall, item.f1),
        lambda item: item.average_precision or 0.0,
        "labels",
    )


def _print_weakest(
    items: Iterable[Any],
    columns: Sequence[str],
    parts: Callable[[Any], Sequence[float | None]],
    strength: Callable[[Any], float],
    what: str,
) -> None:
    present = [item for item in items if item.support]
    shown = sorted(present, key=strength)[:SHOWN] if len(present) > SHOWN else present
    rows = ((item.label, *map(_share, parts(item)), str(item.support)) for item in shown)
    print_table(columns, rows)
    if len(shown) < len(present):
        print_line(f"the {len(shown)} weakest of {len(present):,} {what}; --json has all")


HEADLINES = {
    "single-label": _class_headline,
    "multi-label": _label_headline,
    "regression": _value_headline,
}
LINES = {"single-label": _class_lines, "multi-label": _label_lines, "regression": _value_lines}
TABLES: dict[str, Callable[[Any], None]] = {
    "single-label": _print_classes,
    "multi-label": _print_labels,
    "regression": lambda found: None,
}
