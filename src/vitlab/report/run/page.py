"""The page: sections in the order of a reader's questions."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.config import parse_json
from vitlab.errors import ConfigError, one_line
from vitlab.io.files import replacing
from vitlab.report.html import Html, duration, element, in_pflops, join, short
from vitlab.report.run import classification
from vitlab.report.run import multilabel as labels
from vitlab.report.run import regression as values
from vitlab.report.run.classification import Section
from vitlab.report.run.content import Drawing, Point, Report
from vitlab.report.run.curves import draw_curves
from vitlab.report.run.facts import (
    compute_facts,
    data_facts,
    fold_config,
    list_broken,
    model_facts,
    pairs,
)
from vitlab.report.style import STYLE

# Presentation of each task: its main metric, tiles, sentences and sections.


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Presentation of an evaluation of one task."""

    figure: Callable[[Any, str], Html]
    """Main metric, given the evaluation and the split."""
    tiles: Callable[[Any], Iterator[tuple[str, str]]]
    findings: Callable[[Any], Iterator[str]]
    sections: Callable[[Report], Iterator[Section]]


VIEWS = {
    task: View(
        figure=module.figure,
        tiles=module.tiles,
        findings=module.findings,
        sections=module.sections,
    )
    for task, module in (
        ("single-label", classification),
        ("multi-label", labels),
        ("regression", values),
    )
}


# The top of the page: quality of the model, its uncertainty, and its cost.


def draw_headline(report: Report) -> Html | None:
    """Draw the main metric, with its interval, beside a few tiles."""
    tiles = [
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in _tiles(report)
    ]
    evaluation = report.evaluation
    if evaluation is None:
        return element("section", *tiles, class_="tiles") if tiles else None
    return element(
        "section",
        VIEWS[evaluation.task].figure(evaluation, report.split),
        element("div", *tiles, class_="tiles"),
        class_="headline",
    )


def findings(report: Report) -> Html | None:
    """Main findings, as sentences."""
    found = report.evaluation
    sentences = [*(VIEWS[found.task].findings(found) if found else ()), *report.notes]
    return element("p", " ".join(sentences), class_="findings") if sentences else None


def _tiles(report: Report) -> Iterator[tuple[str, str]]:
    evaluation = report.evaluation
    if evaluation is not None:
        yield from VIEWS[evaluation.task].tiles(evaluation)
    if report.model is not None:
        yield "parameters", short(report.model.parameters)
        yield "FLOPs per image", short(report.model.flops)
    if report.compute is not None:
        yield "training time", duration(report.compute.seconds)
        yield "training compute", in_pflops(report.compute.flops)


def heading(report: Report) -> Html:
    """Title and date."""
    return element(
        "header",
        element("p", join(["vitlab report"]), class_="over"),
        element("h1", report.title),
        None if report.made_at is None else element("p", report.made_at, class_="quiet"),
    )


def render(report: Report) -> str:
    """The whole page, self-contained."""
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
    """Show a figure on white, with its description."""
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


# `report.html` in the folder of a run.


def write_report(run: Path, report: Report) -> Path:
    """Write `report.html` with the curves and the configuration that the run's folder holds."""
    metrics, config = run / "metrics.jsonl", run / "config.json"
    report = replace(
        report,
        metrics=report.metrics or (read_metrics(metrics) if metrics.exists() else ()),
        config=report.config or (parse_json(config.read_text()) if config.exists() else None),
    )
    return write_page(run / "report.html", report)


def write_page(path: Path, report: Report) -> Path:
    """Write the page to a file of any name, atomically."""
    with replacing(path) as file:
        file.write(render(report).encode(errors="replace"))
    return path


def read_metrics(path: Path) -> tuple[Point, ...]:
    """Lines of `metrics.jsonl`; a last line that was cut off while being written is skipped."""
    lines = path.read_bytes().split(b"\n")
    try:
        return tuple(_point(parse_json(line)) for line in lines[:-1] if line)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ConfigError(f"{path}: not the log of a run ({one_line(error)})") from error


def _point(line: dict[str, Any]) -> Point:
    return Point(
        step=line["step"],
        epoch=line["epoch"],
        split=line["split"],
        name=line["name"],
        value=float(line["value"]),
    )
