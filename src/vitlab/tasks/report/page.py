"""The page: sections in the order in which one asks."""

import base64
from collections.abc import Iterator

from vitlab import __version__
from vitlab.tasks.report.content import Drawing, Report
from vitlab.tasks.report.curves import draw_curves
from vitlab.tasks.report.facts import (
    compute_facts,
    data_facts,
    fold_config,
    list_broken,
    model_facts,
    pairs,
)
from vitlab.tasks.report.headline import draw_headline, findings, heading
from vitlab.tasks.report.markup import Html, element
from vitlab.tasks.report.style import STYLE
from vitlab.tasks.report.views import VIEWS


def render(report: Report) -> str:
    """The whole page, with everything it needs inside."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", report.title),
        element("style", Html(STYLE)),
    )
    body = element(
        "body",
        element(
            "main",
            heading(report),
            draw_headline(report),
            findings(report),
            *_sections(report),
            element("footer", f"Made by vitlab {__version__}."),
        ),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _sections(report: Report) -> Iterator[Html]:
    curves = draw_curves(report.metrics)
    if curves is not None:
        yield _section("How it learned", curves)
    for drawing in report.drawings:
        yield _section(drawing.title, show(drawing))
    if report.evaluation is not None:
        for title, content in VIEWS[report.evaluation.task].sections(report):
            yield _section(title, *content)
    yield from _facts(report)
    if report.broken is not None:
        yield _section("Images that could not be read", list_broken(report.broken))
    yield from _again(report)


def show(drawing: Drawing) -> Html:
    """A figure on white, with what it is."""
    picture = f"data:image/svg+xml;base64,{base64.b64encode(drawing.svg).decode()}"
    image = element("img", src=picture, alt=drawing.caption)
    framed = element("div", image, class_="drawing")
    return element("figure", framed, element("figcaption", drawing.caption))


def _facts(report: Report) -> Iterator[Html]:
    tables = []
    if report.model is not None:
        tables.append(pairs(model_facts(report.model), "Model"))
    if report.data is not None:
        tables.append(pairs(data_facts(report.data), "Data"))
    if report.compute is not None:
        tables.append(pairs(compute_facts(report.compute), "Compute"))
    trained = report.compute is not None
    title = "What was trained, on what, at what cost" if trained else "Model and data"
    if tables:
        yield _section(title, element("div", *tables, class_="grid three"))


def _again(report: Report) -> Iterator[Html]:
    command = None if report.command is None else element("pre", element("code", report.command))
    config = None if report.config is None else fold_config(report.config)
    if command is not None or config is not None:
        yield _section("How to do it again", command, config)


def _section(title: str, *content: Html | None) -> Html:
    return element("section", element("h2", title), *content)
