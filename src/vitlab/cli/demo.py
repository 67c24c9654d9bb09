"""`vitlab demo`: the model inside the package on images it never learned from, then fine-tuned."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.judged import headline
from vitlab.cli.live import live_view
from vitlab.cli.options import Json
from vitlab.cli.output import EscapingConsole, print_json, print_line, print_text
from vitlab.errors import Interrupted
from vitlab.io.text import visible

if TYPE_CHECKING:
    from vitlab.jobs.demo import FirstLook, Shown
    from vitlab.jobs.run import Watcher
    from vitlab.jobs.run_result import Run

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
    """Run a short demo on bundled images: predict, train, evaluate, report."""
    from vitlab.cli.train import budget
    from vitlab.jobs.demo import first_look, free_folder, tune
    from vitlab.jobs.run_folder import check_new

    changes = budget(minutes=minutes, steps=steps)
    out = out or free_folder(Path("runs"))
    check_new(out)
    look = first_look()
    if not json:
        _print_look(look)
    run = _watched(out, lambda watcher: tune(out, changes=changes, watcher=watcher), json=json)
    if json:
        print_json(_as_dict(look, run))
    else:
        _print_run(look, run)


def _watched(out: Path, job: "Callable[[Watcher], Run]", *, json: bool) -> "Run":
    """Do a job in sight of the user; interrupted, say how to go on."""
    from vitlab.jobs.run import Watcher
    from vitlab.jobs.run_folder import resume_command

    with live_view(sys.stderr if json else sys.stdout) as view:
        watcher = Watcher(begin=lambda plan, files: view.begin(plan), metric=view.metric)
        try:
            return job(watcher)
        except Interrupted as stop:
            print_line(f"{stop}; continue: {resume_command(out)}", file=sys.stderr)
            raise typer.Exit(128 + stop.signal) from None


def _as_dict(look: "FirstLook", run: "Run") -> dict[str, object]:
    return {
        "model": look.model,
        "before": {"accuracy": _accuracy(look.evaluation), "images": look.evaluation.images},
        "bundle": str(run.bundle),
        "report": str(run.report),
        **run.metrics,
        **run.compute.to_dict(),
        "shown": _shown_as_dicts(look.shown),
    }


def _shown_as_dicts(shown: "tuple[Shown, ...]") -> list[dict[str, object]]:
    """Truth and opinion, image by image."""
    return [
        {"truth": one.truth, "label": one.prediction.label, "top": one.prediction.top}
        for one in shown
    ]


def _accuracy(evaluation: Any) -> float:
    return float(evaluation.accuracy)


def _print_look(look: "FirstLook") -> None:
    print_line(
        f"{look.model}, the model inside the package, on test images of CIFAR-10, which it never "
        "learned from:"
    )
    print_line()
    _print_shown(look.shown)
    print_line()
    print_line(f"on all test images of the sample: {headline(look.evaluation)}")
    print_text(
        "\nNow it is fine-tuned, as on a folder of yours. The images inside the package are of\n"
        "CIFAR-10's training part, and it has learned from most of them before: expect no more\n"
        "accuracy from them, but see how it goes.\n"
    )


def _print_run(look: "FirstLook", run: "Run") -> None:
    from vitlab.cli.train import cost_line

    print_line()
    print_line(f"before: {headline(look.evaluation)}")
    print_line(f"after:  {headline(run.evaluation)}, the same images")
    print_line(f"cost:   {cost_line(run)}")
    print_line(f"report: {run.report.resolve()}  (open it in a browser)")
    print_line(f"model:  {run.bundle}")
    print_text(
        "\nnext:   vitlab predict cifar10 YOUR.jpg\n"
        "        vitlab finetune --from cifar10 --data YOUR_FOLDER --out runs/mine --minutes 5\n"
        "        vitlab info cifar10"
    )


def _print_shown(shown: "tuple[Shown, ...]") -> None:
    """Pictures with opinions on a terminal, lines elsewhere."""
    console = EscapingConsole()
    if console.is_terminal:
        _print_pictures(console, shown)
        return
    for one in shown:
        print_line(f"  {one.truth:<12} {_opinion(one)}")


def _print_pictures(console: EscapingConsole, shown: "tuple[Shown, ...]") -> None:
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
                    ("\n" + visible(_opinion(one))[:SIDE], "green" if _right(one) else "red"),
                    ("\n" if _right(one) else f"\nis {visible(one.truth)}"[: SIDE + 1]),
                )
                for one in row
            )
        )
    console.print(table)


def _right(shown: "Shown") -> bool:
    return shown.prediction.label == shown.truth


def _opinion(shown: "Shown") -> str:
    return f"{shown.prediction.label} {shown.prediction.probability or 0:.0%}"
