"""The page of an experiment: question, conclusion, figures, every arm, and how to do it again."""

import json
from collections.abc import Iterator, Mapping, Sequence

from vitlab.experiments.figures import measure
from vitlab.experiments.findings import Findings, amount, points, sides
from vitlab.experiments.spec import Arm
from vitlab.experiments.statistics import Difference, Summary
from vitlab.report.html import (
    Html,
    element,
    folded,
    heading,
    join,
    page,
    row,
    scrolling,
    section,
    table,
    tiles,
)
from vitlab.report.numbers import duration, in_pflops, percent, short
from vitlab.report.run.content import Drawing, show

# Table of the arms: settings, results and cost.

MANY = 4
"""Number of settings from which on repeated ones are not listed again."""
START = "of its start"
NUMBERS = ("steps", "compute, time", START, "parameters, FLOPs")


def arms_table(found: Findings) -> Html:
    """A row for each arm."""
    names = ("seeds", "held out", "training images", measure(found).replace(" in %", ""))
    numbers = [name for name in (*names, *NUMBERS) if name not in _unused(found)]
    rows = []
    for arm in found.experiment.arms:
        values = _values(found, arm)
        what = element("div", _settings(arm, found.experiment.arms), class_="what")
        name = join([arm.shown, what])
        if values is None:
            none = element("td", "no result", colspan=len(numbers), class_="quiet")
            rows.append(element("tr", element("td", name), none))
        else:
            shown = dict(zip((*names, *NUMBERS), values, strict=True))
            rows.append(row((name, *(shown[column] for column in numbers))))
    return scrolling(table(("arm", *numbers), rows, kind="list arms"))


def _unused(found: Findings) -> set[str]:
    """Columns without a value in any arm."""
    known = found.summaries.values()
    empty = set()
    if all(summary.train_accuracy is None for summary in known):
        empty.add("training images")
    if not any(summary.before for summary in known):
        empty.add(START)
    return empty


def _values(found: Findings, arm: Arm) -> tuple[str | Html, ...] | None:
    """Cells of an arm by column; None without a result."""
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
    """Mean and, for several seeds, the deviation."""
    if known.deviation is None:
        return percent(known.mean, 2)
    return f"{percent(known.mean, 2)} ± {100 * known.deviation:.2f}"


def _start_cell(known: Summary) -> str | Html:
    """Compute and time of the runs that the arm starts from."""
    if not known.before:
        return "–"
    return _under(in_pflops(1e15 * known.before), duration(60 * known.minutes_before))


def _size_cell(parameters: int, forward: int) -> Html:
    """Parameters of a model, and its FLOPs for an image."""
    return _under(short(parameters), short(forward))


def _under(first: str, second: str) -> Html:
    """Two values of a cell, one below the other."""
    return element("div", first, element("div", second, class_="what"))


def cost_cells(steps: float, pflops: float, minutes: float) -> tuple[str, str, str]:
    """Steps, compute and time as text."""
    return (
        f"{steps:,.0f}",
        in_pflops(1e15 * pflops) if pflops else "–",
        duration(60 * minutes) if minutes else "–",
    )


def _settings(arm: Arm, arms: Sequence[Arm]) -> str:
    """Changed settings of an arm; a long list equal to that of an arm above is not repeated."""
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
    """Start of an arm, in words."""
    if arm.weights == "fresh":
        return f"the model of {arm.start}{size}, from nothing"
    word = {"tune": "fine-tuned from", "test": "evaluated as is:"}[arm.how]
    positions = f", positions {arm.positions}" if arm.image_size else ""
    return f"{word} {arm.start}{size}{positions}{', head new' if arm.new_head else ''}"


CAPTIONS = {
    "accuracy": "Results of the arms; bars, where there are several seeds, are their deviation.",
    "differences": (
        "How much better each arm is than the one it is compared with. Filled in blue, orange or "
        "black is what the conclusion claims; hollow and grey is left open."
    ),
    "gradients": (
        "Left: the norm of the gradient of each encoder block before the first update, with a head "
        "drawn at random (one of zeros passes none on). Right: that of the whole gradient in the "
        "course of training."
    ),
    "cost": "Time and memory of one update at the batch size of the training.",
}
MATCHED = {
    "minutes": "the same minutes for every training",
    "steps": "as many steps for every training as the minutes bought the first",
    "compute": "as much compute for every training as the minutes bought the first",
}


def render(found: Findings, figures: Mapping[str, bytes]) -> str:
    """The whole page, with everything it needs inside; `figures` are SVG files by name."""
    title = f"{found.experiment.title} · {found.record.data.rsplit('/', 1)[-1]}"
    experiment = found.experiment
    top = heading("vitlab experiment", experiment.title, experiment.question)
    return page(title, top, *_sections(found, figures), kind="experiment")


def _sections(found: Findings, figures: Mapping[str, bytes]) -> Iterator[Html]:
    yield element("section", *tiles(_tiles(found)), class_="tiles")
    title = "Smoke run: no conclusion" if found.record.smoke else "What the numbers say"
    yield section(title, _conclusion(found))
    if figures:
        drawn = (
            Drawing(title=name, svg=content, caption=CAPTIONS[name.removesuffix(".svg")])
            for name, content in figures.items()
        )
        yield element("section", *map(show, drawn))
    yield section("Arms", arms_table(found))
    if found.differences:
        yield section("Differences", _differences(found), element("p", _how(found), class_="quiet"))
    if found.experiment.paper:
        yield section("What the paper found", element("p", found.experiment.paper))
    if found.failures:
        yield section("What failed", _failures(found))
    yield section("Every training", _trainings(found))
    yield section("How to do it again", element("pre", element("code", found.record.command)))


def _tiles(found: Findings) -> list[tuple[str, str]]:
    done, record = len(found.results), found.record
    minutes = sum(result.minutes for result in found.results)
    flops = 1e15 * sum(result.pflops for result in found.results)
    return [
        ("arms × seeds", f"{len(found.experiment.arms)} × {record.seeds}"),
        ("trainings done", f"{done} of {found.trainings}"),
        ("data", record.data.rsplit("/", 1)[-1]),
        ("precision", record.precision),
        ("training time in all", duration(60 * minutes)),
        ("compute in all", in_pflops(flops)),
    ]


def _conclusion(found: Findings) -> Html:
    sentences = found.conclusion
    if not sentences:
        return element("p", "Nothing can be compared yet.")
    return element("ul", *(element("li", text) for text in sentences), class_="conclusion")


def _differences(found: Findings) -> Html:
    heads = ("arm", "against", "points", "95 % interval", "p (Holm)", "seeds", "conclusion")
    rows = (_difference(found, item) for item in found.differences)
    return scrolling(table(heads, rows, numbers=slice(2, 6)))


def _difference(found: Findings, item: Difference) -> tuple[str | Html, ...]:
    span = "–"
    if item.low is not None and item.high is not None:
        span = f"{points(item.low)} to {points(item.high)}"
    verdict = element("span", item.verdict, class_=item.verdict)
    names = sides(found.experiment, item)
    p = "–" if item.p is None else f"{item.p:.2g}"
    return (*names, points(item.mean), span, p, str(item.seeds), verdict)


def _how(found: Findings) -> str:
    margin = amount(found.experiment.margin)
    budget = "a few steps" if found.record.smoke else MATCHED[found.experiment.matched]
    return (
        f"Differences are taken seed by seed, since both arms then share their held-out images. "
        f"Intervals are 95 %, each by itself: Student's over the seeds, with the residual of all "
        f"arms pooled, which covers other seeds on these same test images, not other images. Where "
        f"each arm has one seed, they cover other test images (with few shots, other draws of "
        f"these), and other seeds as far as they varied in experiments with three. “Better” and "
        f"“worse”: p, corrected for all comparisons by Holm's method, is below 0.05; of what one "
        f"arm has over another, beside what a third has over a fourth: more and less. “Equal”: so "
        f"is that of a difference of {margin} or more, over several seeds. "
        f"Anything else is left open. Budget: {budget}."
    )


def _failures(found: Findings) -> Html:
    rows = (
        element("tr", element("td", name), element("td", reason))
        for name, reason in found.failures.items()
    )
    return element("table", *rows, class_="list broken")


def _trainings(found: Findings) -> Html:
    rows: list[tuple[str | Html, ...]] = []
    for result in found.results:
        arm = found.experiment.arm(result.arm)
        page = f"arms/{result.arm}/seed-{result.seed}/report.html"
        name = arm.shown if arm.how == "test" else element("a", arm.shown, href=page)
        cost = cost_cells(result.steps, result.pflops, result.minutes)
        rows.append((name, str(result.seed), percent(result.value, 2), *cost))
    heads = ("arm", "seed", "value", "steps", "compute", "time")
    summary = f"{len(rows)} trainings, each with a page of its own"
    return folded(summary, scrolling(table(heads, rows)))
