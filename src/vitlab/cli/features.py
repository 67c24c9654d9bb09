"""`vitlab features`: features of images, written to a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import (
    Download,
    Images,
    ImagesAtOnce,
    ImageSize,
    Json,
    Layer,
    Model,
    Preparation,
    Workers,
    states_preprocessing,
)
from vitlab.cli.output import human, print_json, print_left_out, print_pairs
from vitlab.cli.progress import job_progress

if TYPE_CHECKING:
    from vitlab.jobs.features import Extracted


@states_preprocessing
def features(
    model: Model,
    images: Images,
    output: Annotated[Path, typer.Option(metavar="FILE.npz|.parquet", help="File to write.")],
    kind: Annotated[
        str, typer.Option(help="pooled (input of the head), cls (class token) or patches (a grid).")
    ] = "pooled",
    layer: Layer = None,
    image_size: ImageSize = None,
    split: Annotated[
        str | None, typer.Option(help="train, test or all (the default) of a dataset by name.")
    ] = None,
    batch_size: ImagesAtOnce = 64,
    workers: Workers = 0,
    download: Download = False,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Write the features of images to a file; unreadable images are listed and skipped."""
    from vitlab.jobs.features import extract

    with job_progress() as watch:
        found = extract(
            model,
            images,
            output=output,
            kind=kind,
            layer=layer,
            image_size=image_size,
            split=split,
            batch_size=batch_size,
            workers=workers,
            download=download,
            preprocessing=preprocessing,
            watch=watch,
        )
    if json:
        print_json(_facts(found))
        return
    print_pairs(_lines(found))
    print_left_out(found.broken)


def _facts(found: "Extracted") -> dict[str, Any]:
    return {
        "output": str(found.output),
        "images": found.images,
        "labelled": found.labelled,
        "broken": found.broken,
        **found.info.to_json(),
    }


def _lines(found: "Extracted") -> list[tuple[str, str]]:
    info = found.info
    layer = "the last layer" if info.layer is None else f"layer {info.layer}"
    size = " x ".join(map(str, info.shape))
    lines = [
        ("images", f"{found.images:,} ({found.labelled:,} with a label)"),
        ("features", f"{info.kind} of {layer}, {size} an image"),
        ("file", f"{found.output} ({human(found.output.stat().st_size)}B)"),
    ]
    if found.broken:
        lines.insert(1, ("not readable", f"{len(found.broken):,} (left out)"))
    return lines
