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
MANY = 4
"""Settings of an arm that are told once."""
START = "of its start"
NUMBERS = ("steps", "compute, time", START, "parameters, FLOPs")


def arms_table(found: Findings) -> Html:
    """A row for each arm."""
    names = ("seeds", "held out", "learnt images", measure(found).replace(" in %", ""))
    numbers = [name for name in (*names, *NUMBERS) if name not in _unused(found)]
    heads: Heads = [("arm", None), *((name, "number") for name in numbers)]
    rows = []
    for arm in found.experiment.arms:
        values = _values(found, arm)
        what = element("div", _settings(arm, found.experiment.arms), class_="what")
        cells = [element("td", arm.shown, what)]
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
        empty.add(START)
    return empty


def _values(found: Findings, arm: Arm) -> tuple[str | Html, ...] | None:
    """What the columns say of an arm; None of one without a result."""
    known = found.summaries.get(arm.name)
    if known is not None:
        steps, *spent = cost_cells(known.steps, known.pflops, known.minutes)
        return (
            str(len(known.values)),
            percent(known.held_out),
            percent(known.train_accuracy),
            _spread(known),
            *(steps, _under(*spent), _start_cell(known)),
            _size_cell(known.parameters, known.forward),
        )
    mine = [result for result in found.results if result.arm == arm.name]
    if not mine:
        return None
    one = mine[0]
    steps, *spent = cost_cells(one.steps, one.pflops, one.minutes)
    size = _size_cell(one.parameters, one.forward)
    return (str(len(mine)), *("–",) * 3, steps, _under(*spent), "–", size)


def _spread(known: Summary) -> str:
    """Mean and deviation over the seeds, which one seed has none of."""
    if known.deviation is None:
        return percent(known.mean, 2)
    return f"{percent(known.mean, 2)} ± {100 * known.deviation:.2f}"


def _start_cell(known: Summary) -> str | Html:
    """Compute and time behind the weights that an arm starts from."""
    if not known.before:
        return "–"
    return _under(in_pflops(1e15 * known.before), duration(60 * known.minutes_before))


def _size_cell(parameters: int, forward: int) -> Html:
    """Parameters of a model, and its FLOPs for an image."""
    return _under(short(parameters), short(forward))


def _under(first: str, second: str) -> Html:
    """Two figures of a cell, one below the other."""
    return element("div", first, element("div", second, class_="what"))


def cost_cells(steps: float, pflops: float, minutes: float) -> tuple[str, str, str]:
    """Steps, compute and time, as they are shown."""
    return (
        f"{steps:,.0f}",
        in_pflops(1e15 * pflops) if pflops else "–",
        duration(60 * minutes) if minutes else "–",
    )


def _settings(arm: Arm, arms: Sequence[Arm]) -> str:
    """What is different about an arm; many settings that one above it has too are not repeated."""
    parts = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in arm.changes.items()]
    same = next(other for other in arms if other.changes == arm.changes)
    if same != arm and len(parts) >= MANY:
        parts = [f"settings of “{same.shown}”"]
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
