"""The page: sections in the order of a reader's questions."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab.config import parse_json
from vitlab.errors import ConfigError, one_line
from vitlab.io.files import replacing
from vitlab.objectives.objective import objective_of
from vitlab.report.html import Html, element, folded, heading, join, page, pairs, section, tiles
from vitlab.report.language import say, spoken
from vitlab.report.numbers import duration, in_pflops, short
from vitlab.report.run.content import Compute, Data, Model, Point, Report, show
from vitlab.report.run.curves import draw_curves

# The top of the page: quality of the model, its uncertainty, and its cost.


def draw_headline(report: Report) -> Html | None:
    """Draw the main metric, with its interval, beside a few tiles."""
    boxes, evaluation = tiles(_tiles(report)), report.evaluation
    if evaluation is None:
        return element("section", *boxes, class_="tiles") if boxes else None
    return element(
        "section",
        objective_of(evaluation.task).report.headline(evaluation, report.split),
        element("div", *boxes, class_="tiles"),
        class_="headline",
    )


def findings(report: Report) -> Html | None:
    """Main findings, as sentences."""
    found = report.evaluation
    sentences = [*(objective_of(found.task).report.findings(found) if found else ()), *report.notes]
    space = "" if spoken() == "zh" else " "
    return element("p", space.join(map(say, sentences)), class_="findings") if sentences else None


def _tiles(report: Report) -> Iterator[tuple[str, str]]:
    evaluation = report.evaluation
    if evaluation is not None:
        yield from objective_of(evaluation.task).report.tiles(evaluation)
    if report.model is not None:
        yield "parameters", short(report.model.parameters)
        yield "FLOPs per image", short(report.model.flops)
    if report.compute is not None:
        yield "training time", duration(report.compute.seconds)
        yield "training compute", in_pflops(report.compute.flops)


def render(report: Report) -> str:
    """The whole page, self-contained."""
    title = say(report.title)
    return page(
        title,
        heading("vitlab report", title, report.made_at),
        draw_headline(report),
        findings(report),
        *_sections(report),
    )


def _sections(report: Report) -> Iterator[Html]:
    curves = draw_curves(report.metrics)
    if curves is not None:
        yield section("How it learned", curves)
    for drawing in report.drawings:
        yield section(drawing.title, show(drawing))
    if report.evaluation is not None:
        for title, content in objective_of(report.evaluation.task).report.sections(report):
            yield section(title, *content)
    yield from _facts(report)
    if report.broken is not None:
        yield section("Images that could not be read", list_broken(report.broken))
    yield from _again(report)


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
        yield section(title, element("div", *tables, class_="grid three"))


def _again(report: Report) -> Iterator[Html]:
    command = None if report.command is None else element("pre", element("code", report.command))
    config = None if report.config is None else fold_config(report.config)
    if command is not None or config is not None:
        yield section("How to do it again", command, config)


# Tables of model, data, cost, and reproduction.

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
        *_said(model.details),
    ]


def data_facts(data: Data) -> Rows:
    """Rows about the data."""
    size = [] if data.size is None else [("image size", say(data.size))]
    augmentation = []
    if data.augmentation is not None:
        augmentation = [("augmentation", ", ".join(map(say, data.augmentation)) or say("none"))]
    return [
        ("data", data.name),
        (data.counted, f"{data.classes:,}"),
        *((f"{split} images", _counted(data, split)) for split in data.images),
        *size,
        *augmentation,
        *_said(data.details),
    ]


def _counted(data: Data, split: str) -> str:
    """Number of images of a split, with the range over the classes."""
    found = data.per_class.get(split)
    return f"{data.images[split]:,}" + ("" if found is None else f" ({say(found)})")


def _said(details: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Further rows, with their values in the language of the page."""
    return ((name, say(value)) for name, value in details.items())


def compute_facts(compute: Compute) -> Rows:
    """Rows about the cost."""
    speed = compute.images / compute.seconds if compute.seconds else 0.0
    return [
        ("training compute", in_pflops(compute.flops).replace(" ", "\u00a0")),
        ("wall time", duration(compute.seconds)),
        ("steps", f"{compute.steps:,}"),
        ("images seen", f"{compute.images:,}"),
        ("speed, with evaluation", say(f"{speed:,.0f} images/s")),
        ("device", compute.device),
        *_said(compute.details),
    ]


def list_broken(broken: Mapping[str, str]) -> Html:
    """List the images that were left out, with the reason."""
    if not broken:
        return element("p", say("Every image could be read."))
    count = f"{len(broken):,} image{'s' if len(broken) > 1 else ''} could not be read"
    rows = (
        element("tr", element("td", element("code", name)), element("td", reason))
        for name, reason in broken.items()
    )
    listed = element("table", *rows, class_="list broken")
    if len(broken) < FOLDED_FROM:
        return element("div", element("p", say(f"{count} and took no part.")), listed)
    return folded(f"{count} and took no part", listed)


def fold_config(config: Mapping[str, Any]) -> Html:
    """All settings with their dotted keys, folded."""
    rows = [(join([key]), _written(value)) for key, value in flatten(config)]
    return folded(f"Complete configuration ({len(rows)} settings)", pairs(rows))


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
