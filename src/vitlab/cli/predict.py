"""`vitlab predict`: labels or values of images."""

import json as json_module
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_model
from vitlab.cli.options import (
    Changes,
    ClassLabels,
    ContactSheet,
    Engine,
    ImageSize,
    InParts,
    Json,
    Merge,
    MergeTokens,
    Part,
    Preparation,
    Ray,
    loading,
    states_preprocessing,
)
from vitlab.cli.output import print_bars, print_json, print_line, print_table, print_text
from vitlab.cli.progress import image_progress
from vitlab.config import to_dict
from vitlab.machine.world import check_alone, rank_and_size
from vitlab.task import THRESHOLD

if TYPE_CHECKING:
    from vitlab.classify.predictor import Prediction
    from vitlab.jobs.predict import Predicted

TOP = 5
SOME_FAILED = 3
"""Exit code if some images could not be read."""


@states_preprocessing
def predict(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A run, a bundle, a weight or exported file, or a name.",
            autocompletion=complete_model,
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|SHARDS|@FILE|-...",
            help="Image files, folders (at any depth), quoted patterns such as 'a/**/*.png', "
            "shards or tables, @FILE with one path a line, or - for standard input: an image, or "
            "one path a line.",
        ),
    ] = None,
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
            help=f"Smallest probability of a label of a multi-label model: {THRESHOLD}.",
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
        bool, typer.Option("--overwrite", help="Overwrite --output instead of continuing it.")
    ] = False,
    contact_sheet: ContactSheet = None,
    labels: ClassLabels = None,
    image_size: ImageSize = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images at once; default: by model and machine.")
    ] = None,
    merge_tokens: MergeTokens = 0,
    max_pixels: Annotated[
        int | None,
        typer.Option(min=1, help="Largest image; default: VITLAB_MAX_PIXELS."),
    ] = None,
    engine: Engine = "auto",
    parts: InParts = False,
    part: Part = None,
    ray: Ray = None,
    merge: Merge = None,
    changes: Changes = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Predict the labels of images; unreadable images are listed and skipped.

    Exit code: 0 all done, 3 done except for images that cannot be read, 2 a user error (such as
    a single image that cannot be read; nothing is written), 1 a bug.
    """
    printer = PredictionPrinter(json=json, quiet=output is not None or merge is not None, top=top)
    if merge is not None:
        _merge(merge, (model, output, images), printer)
        return
    if model is None or not images:
        raise typer.BadParameter("Missing argument: MODEL and images, or --merge OUT")
    if parts or part is not None or ray is not None:
        _in_parts(
            printer,
            model,
            images,
            output=output,
            sheet=contact_sheet,
            part=part,
            ray=ray,
            top=top or TOP,
            threshold=threshold,
            overwrite=overwrite,
            labels=labels,
            batch_size=batch_size,
            merge_tokens=merge_tokens,
            max_pixels=max_pixels,
            engine=engine,
            **loading(changes, image_size=image_size, preprocessing=preprocessing),
        )
        return
    check_alone("predict", "valid for several: --parts")
    from vitlab.jobs.predict import predict as run

    with image_progress(shown=output is not None) as watch:
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
            **loading(changes, image_size=image_size, preprocessing=preprocessing),
        )
    printer.end(found, output, contact_sheet)
    if found.failed:
        raise typer.Exit(SOME_FAILED)


def _in_parts(
    printer: "PredictionPrinter",
    model: str,
    images: list[str],
    *,
    output: Path | None,
    sheet: Path | None,
    **options: Any,
) -> None:
    """Compute the parts of this process."""
    from vitlab.errors import ConfigError
    from vitlab.jobs.parts.predictions import predict_parts

    if output is None:
        raise ConfigError("parts need --output FILE.csv, .jsonl or .parquet")
    if sheet is not None:
        raise ConfigError("parts take no --contact-sheet")
    with image_progress() as watch:
        found = predict_parts(
            model, images, output=output, each=printer.fail, watch=watch, **options
        )
    printer.end(found, output.with_name(f"{output.name}.parts"), None)
    if found.failed and rank_and_size()[1] == 1:  # a launcher would end the others
        raise typer.Exit(SOME_FAILED)


def _merge(output: Path, others: tuple[object, ...], printer: "PredictionPrinter") -> None:
    """Join the parts of an output."""
    check_alone("predict --merge", "valid: one")
    from vitlab.errors import ConfigError
    from vitlab.jobs.parts.predictions import merge_predictions

    if any(others):
        raise ConfigError("--merge OUT takes no model, images or --output")
    found = merge_predictions(output)
    printer.end(found, output, None)
    if found.failed:
        raise typer.Exit(SOME_FAILED)


class PredictionPrinter:
    """Prints predictions as they come; the first waits, since a lone one is shown in detail."""

    def __init__(self, *, json: bool, quiet: bool, top: int | None) -> None:
        self._json = json
        self._quiet = quiet
        self._top = top
        self._count = 0
        self._errors: Counter[str] = Counter()
        self._unreadable: list[str] = []
        self._first: Prediction | None = None

    def take(self, prediction: "Prediction") -> None:
        """Print one prediction."""
        self._count += 1
        if prediction.error is not None:
            self.fail(prediction.path, prediction.error)
        if self._quiet:
            return
        if self._json:
            print_text(f"{'[' if self._count == 1 else ','}\n{_indented(prediction)}", end="")
        elif self._count == 1:
            self._first = prediction
        else:
            self._flush()
            self._line(prediction)

    def fail(self, path: str | None, reason: str) -> None:
        """Print an image that cannot be read."""
        print_line(f"error: {path}: {reason}", file=sys.stderr)
        self._errors[reason] += 1
        self._unreadable.append(str(path))

    def end(self, found: "Predicted", output: Path | None, sheet: Path | None) -> None:
        """Print the end, once all predictions are in."""
        from vitlab.images.find import foreign_note

        for error, count in self._errors.most_common():
            if count > 1 and "which needs pip install" in error:  # one remedy for many images
                print_line(f"{count:,} images: {error}", file=sys.stderr)
        if note := foreign_note(self._unreadable):
            print_line(note, file=sys.stderr)
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
                ((str(prediction.path), text) for text in prediction.answers or ("no label",)),
            )
            return
        if sys.stdout.isatty():
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
