"""`report.html` in the folder of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab.config import parse_json
from vitlab.errors import ConfigError, one_line
from vitlab.files import replacing
from vitlab.tasks.report.content import Point, Report
from vitlab.tasks.report.page import render


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
    """Write the page to a file of any name, whole or not at all."""
    with replacing(path) as file:
        file.write(render(report).encode(errors="replace"))
    return path


def read_metrics(path: Path) -> tuple[Point, ...]:
    """The lines of `metrics.jsonl`; a last one that was cut off while being written is left out."""
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
