"""A benchmark as files: JSON, Markdown and pictures."""

import json
from pathlib import Path

from vitlab.files import write_files
from vitlab.tasks.benchmark.content import Benchmark
from vitlab.tasks.benchmark.plot import draw_curve, draw_speeds
from vitlab.tasks.benchmark.table import markdown
from vitlab.tasks.figures.style import check_matplotlib, rendered, styled
from vitlab.tasks.figures.write import KINDS, check_folder


def check_output(folder: Path) -> None:
    """Refuse what cannot be written, before anything is measured."""
    check_folder(folder)
    check_matplotlib()


def write_benchmark(found: Benchmark, folder: Path, command: str | None = None) -> tuple[Path, ...]:
    """benchmark.json, .md, .png and .svg; with accuracies also curve.png and .svg."""
    check_output(folder)
    told = found.to_dict() | {"command": command}
    contents = {
        "benchmark.json": json.dumps(told, indent=1).encode() + b"\n",
        "benchmark.md": markdown(found, command).encode(),
    }
    drawings = {"benchmark": draw_speeds}
    if found.accuracies:
        drawings["curve"] = draw_curve
    with styled():
        for name, draw in drawings.items():
            drawn = draw(found)
            contents |= {f"{name}.{kind}": rendered(drawn, kind) for kind in KINDS}
    return write_files(folder, contents)
