"""The table of an experiment's arms: settings, what they came to, and what they cost."""

import json
from collections.abc import Iterable, Sequence

from vitlab.experiments.figures import measure
from vitlab.experiments.findings import Findings
from vitlab.experiments.spec import Arm
from vitlab.experiments.statistics import Summary
from vitlab.tasks.report.markup import Html, element
from vitlab.tasks.report.numbers import duration, in_pflops, percent, short

Heads = Sequence[tuple[str, str | None]]
"""Names of columns, and the class of their cells."""
NUMBERS = ("steps", "compute", "of its start", "time", "parameters", "FLOPs per image")


def arms_table(found: Findings) -> Html:
    """A row for each arm."""
    names = ("seeds", "held out", "learnt images", measure(found).replace(" in %", ""))
    numbers = [name for name in (*names, *NUMBERS) if name not in _unused(found)]
    heads: Heads = [("arm", None), *((name, "number") for name in numbers)]
    rows = []
    for arm in found.experiment.arms:
        values = _values(found, arm)
        cells = [element("td", arm.shown, element("div", _settings(arm), class_="what"))]
        if values is None:
            cells.append(element("td", "no result", colspan=len(numbers), class_="quiet"))
        else:
            shown = dict(zip((*names, *NUMBERS), values, strict=True))
            cells += [element("td", shown[name], class_="number") for name in numbers]
        rows.append(element("tr", *cells))
    return table(heads, rows, "list arms")


def _unused(found: Findings) -> set[str]:
    """Columns that no arm has anything for."""
    known = found.summaries.values()
    empty = set()
    if all(summary.train_accuracy is None for summary in known):
        empty.add("learnt images")
    if not any(summary.before for summary in known):
        empty.add("of its start")
    return empty


def _values(found: Findings, arm: Arm) -> tuple[str, ...] | None:
    """What the columns say of an arm; None of one without a result."""
    known = found.summaries.get(arm.name)
    if known is not None:
        steps, compute, time = cost_cells(known.steps, known.pflops, known.minutes)
        return (
            str(len(known.values)),
            percent(known.held_out),
            percent(known.train_accuracy),
            _spread(known),
            *(steps, compute, _start_cell(known), time),
            *(short(known.parameters), short(known.forward)),
        )
    mine = [result for result in found.results if result.arm == arm.name]
    if not mine:
        return None
    spent = mine[0]
    steps, compute, time = cost_cells(spent.steps, spent.pflops, spent.minutes)
    size = (short(spent.parameters), short(spent.forward))
    return (str(len(mine)), *("–",) * 3, steps, compute, "–", time, *size)


def _spread(known: Summary) -> str:
    """Mean and deviation over the seeds, which one seed has none of."""
    if known.deviation is None:
        return percent(known.mean, 2)
    return f"{percent(known.mean, 2)} ± {100 * known.deviation:.2f}"


def _start_cell(known: Summary) -> str:
    """Compute and time behind the weights that an arm starts from."""
    if not known.before:
        return "–"
    return f"{in_pflops(1e15 * known.before)}, {duration(60 * known.minutes_before)}"


def cost_cells(steps: float, pflops: float, minutes: float) -> tuple[str, str, str]:
    """Steps, compute and time, as they are shown."""
    return (
        f"{steps:,.0f}",
        in_pflops(1e15 * pflops) if pflops else "–",
        duration(60 * minutes) if minutes else "–",
    )


def _settings(arm: Arm) -> str:
    """What is different about an arm."""
    parts = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in arm.changes.items()]
    if arm.start:
        size = f" at {arm.image_size} pixels" if arm.image_size else ""
        parts.insert(0, _beginning(arm, size))
    if arm.objective:
        parts.insert(0, f"{arm.objective}, without labels")
    if arm.share != 1:
        parts.append(f"{arm.share:.3g} of the training images")
    if arm.budget != 1:
        parts.append(f"{arm.budget:g} {'of' if arm.budget < 1 else 'times'} the budget")
    return ", ".join(parts) or "the base"


def _beginning(arm: Arm, size: str) -> str:
    """What an arm starts from, in words."""
    if arm.weights == "fresh":
        return f"the model of {arm.start}{size}, from nothing"
    word = {"tune": "fine-tuned from", "test": "judged as is:"}[arm.how]
    positions = f", positions {arm.positions}" if arm.image_size else ""
    return f"{word} {arm.start}{size}{positions}{', head new' if arm.new_head else ''}"


def table(heads: Heads, rows: Iterable[Html], kind: str) -> Html:
    """A table that scrolls by itself where it is wide."""
    head = element("tr", *(element("th", name, class_=cls) for name, cls in heads))
    table = element("table", element("thead", head), element("tbody", *rows), class_=kind)
    return element("div", table, class_="scroll")
