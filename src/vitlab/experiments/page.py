"""The page of an experiment: question, conclusion, figures, every arm, and how to do it again."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vitlab import __version__
from vitlab.experiments.conclusion import amount, points, sides
from vitlab.experiments.figures import measure
from vitlab.experiments.findings import Findings
from vitlab.experiments.spec import Arm
from vitlab.experiments.statistics import Difference, Summary
from vitlab.report.html import Html, duration, element, in_pflops, percent, short
from vitlab.report.run.content import Drawing
from vitlab.report.run.page import show
from vitlab.report.style import STYLE

# The table of an experiment's arms: settings, what they came to, and what they cost.

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


EXTRA = """
.tile { flex-basis: auto; }
.conclusion { font-size: 16px; }
.conclusion li { margin: 0 0 6px; max-width: 84ch; }
.better { color: var(--blue); font-weight: 600; }
.worse { color: var(--orange); font-weight: 600; }
.open { color: var(--quiet); }
.scroll { overflow-x: auto; margin-bottom: 12px; }
.arms td { overflow-wrap: normal; }
.arms td:first-child { min-width: 215px; }
.arms .what { font-size: 12px; color: var(--quiet); }
"""
CAPTIONS = {
    "accuracy": "What the arms came to; bars, where there are several seeds, are their deviation.",
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
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(STYLE + EXTRA)),
    )
    header = element(
        "header",
        element("p", "vitlab experiment", class_="over"),
        element("h1", found.experiment.title),
        element("p", found.experiment.question, class_="quiet")
        if found.experiment.question
        else None,
    )
    footer = element("footer", f"Made by vitlab {__version__}.")
    body = element("body", element("main", header, *_sections(found, figures), footer))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _sections(found: Findings, figures: Mapping[str, bytes]) -> Iterator[Html]:
    yield element("section", *_tiles(found), class_="tiles")
    title = "Smoke run: no conclusion" if found.record.smoke else "What the numbers say"
    yield _section(title, _conclusion(found))
    if figures:
        drawn = (
            Drawing(title=name, svg=content, caption=CAPTIONS[name.removesuffix(".svg")])
            for name, content in figures.items()
        )
        yield element("section", *map(show, drawn))
    yield _section("Arms", arms_table(found))
    if found.differences:
        yield _section(
            "Differences", _differences(found), element("p", _how(found), class_="quiet")
        )
    if found.experiment.paper:
        yield _section("What the paper found", element("p", found.experiment.paper))
    if found.failures:
        yield _section("What failed", _failures(found))
    yield _section("Every training", _trainings(found))
    yield _section("How to do it again", element("pre", element("code", found.record.command)))


def _section(title: str, *content: Html) -> Html:
    return element("section", element("h2", title), *content)


def _tiles(found: Findings) -> Iterator[Html]:
    done, record = len(found.results), found.record
    minutes = sum(result.minutes for result in found.results)
    flops = 1e15 * sum(result.pflops for result in found.results)
    tiles = [
        ("arms × seeds", f"{len(found.experiment.arms)} × {record.seeds}"),
        ("trainings done", f"{done} of {found.trainings}"),
        ("data", record.data.rsplit("/", 1)[-1]),
        ("precision", record.precision),
        ("training time in all", duration(60 * minutes)),
        ("compute in all", in_pflops(flops)),
    ]
    for name, value in tiles:
        yield element("div", element("b", value), element("span", name), class_="tile")


def _conclusion(found: Findings) -> Html:
    sentences = found.conclusion
    if not sentences:
        return element("p", "Nothing can be compared yet.")
    return element("ul", *(element("li", text) for text in sentences), class_="conclusion")


def _differences(found: Findings) -> Html:
    heads = (
        *(("arm", None), ("against", None), ("points", "number"), ("95 % interval", "number")),
        *(("seeds", "number"), ("conclusion", None)),
    )
    rows = (_difference(found, item) for item in found.differences)
    return table(heads, rows, "list")


def _difference(found: Findings, item: Difference) -> Html:
    span = "–"
    if item.low is not None and item.high is not None:
        span = f"{points(item.low)} to {points(item.high)}"
    return element(
        "tr",
        *(element("td", name) for name in sides(found.experiment, item)),
        element("td", points(item.mean), class_="number"),
        element("td", span, class_="number"),
        element("td", str(item.seeds), class_="number"),
        element("td", item.verdict, class_=item.verdict),
    )


def _how(found: Findings) -> str:
    margin = amount(found.experiment.margin)
    budget = "a few steps" if found.record.smoke else MATCHED[found.experiment.matched]
    return (
        f"Differences are taken seed by seed, since both arms then share their held-out images; "
        f"the interval is Student's over the seeds, and tells what other seeds would change on "
        f"these same test images, nothing of other images. Where each arm has one seed, it is a "
        f"bootstrap over the test images, or with few shots Student's over the draws of these, and "
        f"tells nothing of other seeds. “Better” and “worse”: the interval does not cross zero, "
        f"and of one seed of different trainings it lies beyond {margin}; of "
        f"what one arm has over another, beside what a third has over a fourth: more and less. "
        f"“Equal”: it lies within {margin}, over several seeds. "
        f"Anything else is left open. Budget: {budget}."
    )


def _failures(found: Findings) -> Html:
    rows = (
        element("tr", element("td", name), element("td", reason))
        for name, reason in found.failures.items()
    )
    return element("table", *rows, class_="list broken")


def _trainings(found: Findings) -> Html:
    heads = (
        *(("arm", None), ("seed", "number"), ("value", "number"), ("steps", "number")),
        *(("compute", "number"), ("time", "number")),
    )
    rows = []
    for result in found.results:
        arm = found.experiment.arm(result.arm)
        page = f"arms/{result.arm}/seed-{result.seed}/report.html"
        name = arm.shown if arm.how == "test" else element("a", arm.shown, href=page)
        numbers = (
            str(result.seed),
            percent(result.value, 2),
            *cost_cells(result.steps, result.pflops, result.minutes),
        )
        cells = (element("td", text, class_="number") for text in numbers)
        rows.append(element("tr", element("td", name), *cells))
    summary = element("summary", f"{len(rows)} trainings, each with a page of its own")
    return element("details", summary, table(heads, rows, "list"))
