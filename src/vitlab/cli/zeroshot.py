"""`vitlab zeroshot`: labels of images, from a CLIP or SigLIP and words."""

from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import (
    Changes,
    ImageSize,
    Json,
    Model,
    Preparation,
    loading,
    split_names,
    states_preprocessing,
)
from vitlab.cli.output import print_json, print_line
from vitlab.cli.predict import SOME_FAILED, TOP, PredictionPrinter
from vitlab.cli.progress import image_progress, job_progress
from vitlab.errors import ConfigError
from vitlab.task import TEMPLATE


@states_preprocessing
def zeroshot(
    model: Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|SHARDS|@FILE|-...", help="Images, as in vitlab predict."
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Labels: words or short texts.")
    ] = None,
    labels_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels, one a line, or a JSON list.")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=f"Text around a label, which replaces the braces: {TEMPLATE!r}. Repeatable: the "
            f"embeddings are averaged.",
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
            min=0, max=1, metavar="P", help="Smallest probability of a label of a SigLIP."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="Write the labels as a classifier to this folder."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images at once; default: by model and machine.")
    ] = None,
    image_size: ImageSize = None,
    changes: Changes = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Classify images by labels in words, with the text tower of a CLIP or SigLIP.

    Exit code: as in vitlab predict.
    """
    from vitlab.jobs.zeroshot import zeroshot as run

    words = _labels(labels, labels_file)
    printer = PredictionPrinter(json=json, quiet=not images, top=top)
    with job_progress() as texts, image_progress(shown=False) as watch:
        found = run(
            model,
            images or [],
            labels=words,
            templates=template or [TEMPLATE],
            top=top or TOP,
            threshold=threshold,
            batch_size=batch_size,
            save=save,
            each=printer.take,
            watch_texts=texts,
            watch=watch,
            **loading(changes, image_size=image_size, preprocessing=preprocessing),
        )
    if found.predicted is not None:
        printer.end(found.predicted, None, None)
    elif json:
        print_json({"saved": str(save), "task": found.task, "labels": list(found.labels)})
    if save is not None and not json:
        print_line(f"{save}: {len(found.labels):,} labels, {found.task}")
    if found.predicted is not None and found.predicted.failed:
        raise typer.Exit(SOME_FAILED)


def _labels(given: str | None, file: Path | None) -> list[str]:
    """Labels of either option."""
    if (given is None) == (file is None):
        found = "neither" if given is None else "both"
        raise ConfigError(f"{found} of --labels and --labels-file; valid: one of them")
    if file is None:
        return split_names(given) or []
    from vitlab.weights.labels import labels_in

    return list(labels_in(file))
