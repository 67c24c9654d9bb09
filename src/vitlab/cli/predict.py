"""`vitlab predict`: what is on these images."""

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import (
    Changes,
    ClassLabels,
    EngineOption,
    Json,
    MergeTokens,
    loading,
)
from vitlab.cli.output import EscapingConsole, print_json, print_line, print_table, print_text
from vitlab.config import to_dict
from vitlab.task import THRESHOLD

if TYPE_CHECKING:
    from vitlab.classify.predictor import Prediction
    from vitlab.jobs.predict import Predicted, Watch

TOP = 5
SOME_FAILED = 3
"""Exit code of a job that is finished, but for images that could not be read."""


def predict(
    model: Annotated[
        str, typer.Argument(help="A run, a bundle, a weight or exported file, or weights by name.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|-...",
            help="Image files, folders (at any depth), quoted patterns such as 'a/**/*.png', or - "
            "for standard input: an image, or one path a line.",
        ),
    ],
    top: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Labels for each image: {TOP}; on the screen, 1 of several images."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="P",
            help="Probability from which on a multi-label model's label is said to be present: "
            f"{THRESHOLD}.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv|.jsonl|.parquet",
            help="Write predictions here as they come; the same command again continues.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin --output anew, whatever it holds.")
    ] = False,
    contact_sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the images with their labels.")
    ] = None,
    labels: ClassLabels = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images at once; else what suits model and machine.")
    ] = None,
    merge_tokens: MergeTokens = 0,
    max_pixels: Annotated[
        int | None,
        typer.Option(min=1, help="Refuse larger images (else VITLAB_MAX_PIXELS)."),
    ] = None,
    engine: EngineOption = "auto",
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Predict the labels of images; unreadable images are listed and skipped.

    Exit code: 0 all done, 3 done but for images that cannot be read, 2 a mistake of yours (such as
    a single image that cannot be read; nothing is written), 1 a fault of ours.
    """
    from vitlab.jobs.predict import predict as run

    printer = _Printer(json=json, quiet=output is not None, top=top)
    with _progress(shown=output is not None) as watch:
        found = run(
            model,
            images,
            top=top or TOP,
            threshold=threshold,
            output=output,
            overwrite=overwrite,
            contact_sheet=contact_sheet,
            labels=labels,
            batch_size=batch_size,
            merge_tokens=merge_tokens,
            max_pixels=max_pixels,
            engine=engine,
            each=printer.take,
            watch=watch,
            **loading(changes),
        )
    printer.end(found, output, contact_sheet)
    if found.failed:
        raise typer.Exit(SOME_FAILED)


class _Printer:
    """Predictions on the screen as they come; the first waits until it is known to be the only."""

    def __init__(self, *, json: bool, quiet: bool, top: int | None) -> None:
        self._json = json
        self._quiet = quiet
        self._top = top
        self._count = 0
        self._first: Prediction | None = None

    def take(self, prediction: "Prediction") -> None:
        """One more."""
        self._count += 1
        if prediction.error is not None:
            print_line(f"error: {prediction.path}: {prediction.error}", file=sys.stderr)
        if self._quiet:
            return
        if self._json:
            print_text(f"{'[' if self._count == 1 else ','}\n{_indented(prediction)}", end="")
        elif self._count == 1:
            self._first = prediction
        else:
            self._flush()
            self._line(prediction)

    def end(self, found: "Predicted", output: Path | None, sheet: Path | None) -> None:
        """That was all of them."""
        if self._json:
            print_json(_facts(found, output, sheet)) if self._quiet else print_text("\n]")
            return
        if self._count == 1 and not self._quiet:
            self._only()
        written = [str(path) for path in (output, sheet) if path is not None]
        if written:
            print_line(f"{', '.join(written)}: {_summary(found)}")

    def _only(self) -> None:
        prediction, self._first = self._first, None
        if prediction is None or prediction.error is not None:
            return
        if prediction.label is None:  # values, or no label at all
            print_table(
                ("image", "value"),
                ((str(prediction.path), told) for told in prediction.answers or ("no label",)),
            )
            return
        if sys.stdout.isatty():
            from vitlab.cli.output import print_bars

            print_bars(str(prediction.path), prediction.top)
            return
        print_table(
            ("image", "label", "probability"),
            ((str(prediction.path), label, f"{value:.1%}") for label, value in prediction.top),
        )

    def _flush(self) -> None:
        if self._first is not None:
            prediction, self._first = self._first, None
            self._line(prediction)

    def _line(self, prediction: "Prediction") -> None:
        if prediction.error is None:
            count = self._top or (None if prediction.several else 1)
            print_line(prediction.path, *prediction.answers[:count], sep="\t", flush=True)


def _indented(prediction: "Prediction") -> str:
    from vitlab.jobs.prediction_records import record

    return "  " + json_module.dumps(record(prediction))


def _summary(found: "Predicted") -> str:
    new = found.images - found.done_before
    speed = f" ({new / found.seconds:,.0f} a second)" if new and found.seconds > 1 else ""
    before = f", {found.done_before:,} of them before" if found.done_before else ""
    failed = f", {found.failed:,} cannot be read" if found.failed else ""
    return f"{found.images:,} images{speed}{before}{failed}"


def _facts(found: "Predicted", output: Path | None, sheet: Path | None) -> dict[str, Any]:
    return {
        "output": None if output is None else str(output),
        "contact_sheet": None if sheet is None else str(sheet),
        **to_dict(found),
    }


@contextmanager
def _progress(*, shown: bool) -> "Iterator[Watch | None]":
    """A bar with an estimate on a terminal, where nothing else is printed."""
    if not shown:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = EscapingConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
