"""`vitlab demo`: predict with the bundled model, fine-tune it, evaluate and report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import Json, recipe_changes
from vitlab.cli.output import EscapingConsole, print_json, print_line, print_text, thumbnail
from vitlab.cli.progress import run_with_progress
from vitlab.io.text import visible

if TYPE_CHECKING:
    from vitlab.jobs.demo import DemoResult, Shown
    from vitlab.jobs.run_result import RunResult

SIDE = 16
"""Columns of an image in the terminal."""


def demo(
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder of the run; default: runs/demo.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of minutes.")] = None,
    json: Json = False,
) -> None:
    """Run a short demo on bundled images: predict, train, evaluate, report."""
    from vitlab.jobs.demo import first_look, free_folder, tune
    from vitlab.jobs.plan import check_new

    changes = recipe_changes(None, {"minutes": minutes, "steps": steps})
    out = out or free_folder(Path("runs"))
    check_new(out)
    look = first_look()
    if not json:
        _print_look(look)
    run = run_with_progress(
        lambda watcher: tune(out, changes=changes, watcher=watcher), out, json=json, notes=False
    )
    if json:
        print_json(_as_dict(look, run))
    else:
        _print_run(look, run)


def _as_dict(look: "DemoResult", run: "RunResult") -> dict[str, object]:
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
    """Label, prediction and probabilities of each image."""
    return [
        {"truth": one.truth, "label": one.prediction.label, "top": one.prediction.top}
        for one in shown
    ]


def _accuracy(evaluation: Any) -> float:
    return float(evaluation.accuracy)


def _print_look(look: "DemoResult") -> None:
    print_line(
        f"{look.model}, the model inside the package, on test images of CIFAR-10, which it never "
        "learned from:"
    )
    print_line()
    _print_shown(look.shown)
    print_line()
    print_line(f"on all test images of the sample: {look.evaluation.headline}")
    print_text(
        "\nNow it is fine-tuned, as on a folder of yours. The images inside the package are of\n"
        "CIFAR-10's training part, and it has learned from most of them before: expect no more\n"
        "accuracy from them, but see how it goes.\n"
    )


def _print_run(look: "DemoResult", run: "RunResult") -> None:
    from vitlab.cli.train import cost_line

    assert run.evaluation is not None  # only pretraining has none
    print_line()
    print_line(f"before: {look.evaluation.headline}")
    print_line(f"after:  {run.evaluation.headline}, the same images")
    print_line(f"cost:   {cost_line(run)}")
    print_line(f"report: {run.report.resolve()}  (open it in a browser)")
    print_line(f"model:  {run.bundle}")
    print_text(
        "\nnext:   vitlab predict cifar10 YOUR.jpg\n"
        "        vitlab finetune --from cifar10 --data YOUR_FOLDER --out runs/mine --minutes 5\n"
        "        vitlab info cifar10"
    )


def _print_shown(shown: "tuple[Shown, ...]") -> None:
    """Print images with predictions on a terminal, lines elsewhere."""
    console = EscapingConsole()
    if console.is_terminal:
        _print_images(console, shown)
        return
    for one in shown:
        print_line(f"  {one.truth:<12} {_predicted(one)}")


def _print_images(console: EscapingConsole, shown: "tuple[Shown, ...]") -> None:
    """Print as many images side by side as fit, each above its prediction."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 1, 0))
    columns = max(1, min(5, console.width // (SIDE + 2)))
    for start in range(0, len(shown), columns):
        row = shown[start : start + columns]
        table.add_row(
            *(
                Text.assemble(
                    thumbnail(one.image, SIDE),
                    ("\n" + visible(_predicted(one))[:SIDE], "green" if _right(one) else "red"),
                    ("\n" if _right(one) else f"\nis {visible(one.truth)}"[: SIDE + 1]),
                )
                for one in row
            )
        )
    console.print(table)


def _right(shown: "Shown") -> bool:
    return shown.prediction.label == shown.truth


def _predicted(shown: "Shown") -> str:
    return f"{shown.prediction.label} {shown.prediction.probability or 0:.0%}"
