"""`vitlab demo`: a small ViT trained on images inside the package, then asked about new ones."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitlab.cli.judged import headline
from vitlab.cli.live import live_view
from vitlab.cli.options import Json
from vitlab.cli.output import print_json
from vitlab.errors import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from vitlab.tasks.demo import Demo, Shown

SIDE = 16
"""Columns of a picture in the terminal."""


def demo(
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder of the run; default: runs/demo.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Time for training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates instead of a time.")] = None,
    json: Json = False,
) -> None:
    """Train a small ViT on images inside the package, evaluate it, and look at what it says."""
    from vitlab.cli.train import budget
    from vitlab.tasks.demo import demo as run_demo
    from vitlab.tasks.demo import free_folder
    from vitlab.tasks.job import Watcher
    from vitlab.tasks.run_folder import resume_command

    changes = budget(minutes=minutes, steps=steps)
    out = out or free_folder(Path("runs"))
    with live_view(sys.stderr if json else sys.stdout) as view:
        watcher = Watcher(begin=lambda plan, files: view.begin(plan), metric=view.metric)
        try:
            found = run_demo(out, changes=changes, watcher=watcher)
        except Interrupted as stop:
            print(f"{stop}; continue: {resume_command(out)}", file=sys.stderr)
            raise typer.Exit(128 + stop.signal) from None
    if json:
        print_json(_as_dict(found))
    else:
        _print(found)


def _as_dict(found: "Demo") -> dict[str, object]:
    run = found.run
    return {
        "bundle": str(run.bundle),
        "report": str(run.report),
        **run.metrics,
        "shown": [
            {"truth": shown.truth, "label": shown.prediction.label, "top": shown.prediction.top}
            for shown in found.shown
        ],
    }


def _print(found: "Demo") -> None:
    from rich.console import Console

    console = Console()
    run = found.run
    console.print("\nOne test image of each class, never seen in training:\n")
    if console.is_terminal:
        _print_pictures(console, found.shown)
    else:
        for shown in found.shown:
            print(f"  {shown.truth:<12} {_opinion(shown)}")
    print(
        f"\n{run.split} {headline(run.evaluation)}; guessing gives "
        f"{1 / len(run.evaluation.labels):.0%}\n"
        f"report: {run.report.resolve()}  (open it in a browser)\n"
        f"model:  {run.bundle}\n\n"
        f"next:   vitlab predict {run.bundle} YOUR.jpg\n"
        "        vitlab train --data YOUR_FOLDER --out runs/mine --minutes 20"
    )


def _print_pictures(console: "Console", shown: "tuple[Shown, ...]") -> None:
    """As many pictures side by side as the terminal has room for, with what the model says."""
    from rich.table import Table
    from rich.text import Text

    from vitlab.cli.thumbnails import thumbnail

    table = Table.grid(padding=(0, 2, 1, 0))
    columns = max(1, min(5, console.width // (SIDE + 2)))
    for start in range(0, len(shown), columns):
        row = shown[start : start + columns]
        table.add_row(
            *(
                Text.assemble(
                    thumbnail(one.image, SIDE),
                    ("\n" + _opinion(one)[:SIDE], "green" if _right(one) else "red"),
                    ("\n" if _right(one) else f"\nis {one.truth}"[: SIDE + 1]),
                )
                for one in row
            )
        )
    console.print(table)


def _right(shown: "Shown") -> bool:
    return shown.prediction.label == shown.truth


def _opinion(shown: "Shown") -> str:
    return f"{shown.prediction.label} {shown.prediction.probability or 0:.0%}"
