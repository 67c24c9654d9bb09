"""A benchmark in words: a table for each batch size, and one of what the models are."""

from collections.abc import Sequence

from vitlab.contest.ratios import Estimate
from vitlab.tasks.benchmark.content import PERCENTILES, Benchmark, Cell, Entry
from vitlab.visible_text import markdown_text, visible

SPEEDS = (
    "",
    "images/s",
    *(f"{name} ms" for name in PERCENTILES),
    "times as fast",
    "95 % interval",
    "place",
    "memory MB",
    "of limit",
)
MODELS = ("", "parameters", "GFLOPs", "GMACs", "MB", "logits differ by")
Rows = list[tuple[str, ...]]


def speeds(cell: Cell) -> Rows:
    """How fast each was; a place only where no interval leaves a doubt."""
    return [_speed(cell, entry) for entry in cell.entries]


def models(found: Benchmark) -> tuple[tuple[str, ...], Rows]:
    """What each is and costs for one image; with the accuracy, if that was asked."""
    head: tuple[str, ...] = (*MODELS, "accuracy") if found.accuracies else MODELS
    worst = {
        entry.name: max(cell.differences[entry.name] for cell in found.cells)
        for entry in found.entries
    }
    rows: Rows = []
    for entry in found.entries:
        row = (
            entry.name,
            "-" if entry.parameters is None else f"{entry.parameters / 1e6:.2f} M",
            "-" if entry.flops is None else f"{entry.flops / 1e9:.3g}",
            "-" if entry.flops is None else f"{entry.flops / 2e9:.3g}",
            f"{entry.bytes / 1e6:.1f}",
            _difference(entry, worst[entry.name]),
        )
        rows.append((*row, _accuracy(found, entry)) if found.accuracies else row)
    return head, rows


def markdown(found: Benchmark, command: str | None = None) -> str:
    """All of it."""
    parts = [
        f"# Benchmark\n\n{markdown_text(found.machine['processor'])}, {found.threads} threads."
    ]
    if command is not None:
        parts.append(f"```\n{visible(command)}\n```")
    for cell in found.cells:
        parts += [f"## Batch of {cell.batch}", _table(SPEEDS, speeds(cell))]
        parts += [f"Warning: {markdown_text(line)}; measure again." for line in cell.disturbances]
    parts += ["## What ran", _table(*models(found)), markdown_text(notes(found))]
    return "\n\n".join(parts) + "\n"


def notes(found: Benchmark) -> str:
    """How to read the tables."""
    first = found.entries[0].reference
    told = (
        f"Times as fast as {first}; in a library's own form, as ours in that form: medians of "
        f"{len(found.cells[0].rounds)} rounds in which each was woken once, and the interval that "
        f"resampling the rounds gives. A range of places: the intervals do not tell them apart. "
        f"Memory is the peak of the process, with imports. The limit is a large matrix product in "
        f"the same rounds."
    )
    if found.accuracies:
        told += f" Accuracy on {found.accuracies[0].images:,} images."
    if any(entry.by_design for entry in found.entries):
        told += (
            " By design: it merges or quantises otherwise than the first of the same weights, and "
            "gives other logits."
        )
    if any(entry.fresh for entry in found.entries):
        told += " Weights of names alone are random."
    return told


def _speed(cell: Cell, entry: Entry) -> tuple[str, ...]:
    reference = entry.name == entry.reference
    found = cell.against(entry.name, entry.reference)
    first, last = cell.place(entry.name)
    share = cell.share_of_limit(entry)
    return (
        entry.name,
        f"{cell.images_per_second(entry.name):.3g}",
        *(_milliseconds(cell.percentile(entry.name, share)) for share in PERCENTILES.values()),
        "1" if reference else f"{found.ratio:.3f}",
        "-" if reference else _interval(found),
        str(first) if first == last else f"{first}-{last}",
        f"{cell.memory[entry.name].ever / 1e6:.0f}",
        "-" if share is None else f"{share:.0%}",
    )


def _difference(entry: Entry, worst: float) -> str:
    if entry.name == entry.original:
        return "-"
    return f"{worst:.1g}" + (", by design" if entry.by_design else "")


def _interval(found: Estimate) -> str:
    return "too few rounds" if found.low <= 0 else f"{found.low:.3f} to {found.high:.3f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"


def _accuracy(found: Benchmark, entry: Entry) -> str:
    told = found.accuracy(entry)
    if told is None:
        return "-"
    low, high = told.interval
    text = f"{told.accuracy:.1%} ({low:.1%} to {high:.1%})"
    if told.merge_tokens or told.change_interval != (0.0, 0.0):
        low, high = told.change_interval
        text += f", {100 * told.change:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
    return text


def _table(head: Sequence[str], rows: Rows) -> str:
    head, rows = tuple(map(markdown_text, head)), [tuple(map(markdown_text, row)) for row in rows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
