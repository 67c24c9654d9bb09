"""The page of an experiment: question, conclusion, figures, every arm, and how to do it again."""

from collections.abc import Iterator, Mapping

from vitlab import __version__
from vitlab.experiments.arms_table import arms_table, cost_cells, table
from vitlab.experiments.conclusion import amount, points, sides
from vitlab.experiments.findings import Findings
from vitlab.experiments.statistics import Difference
from vitlab.tasks.report.content import Drawing
from vitlab.tasks.report.markup import Html, element
from vitlab.tasks.report.numbers import duration, in_pflops, percent
from vitlab.tasks.report.page import show
from vitlab.tasks.report.style import STYLE

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
