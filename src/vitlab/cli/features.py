"""`vitlab features`: what images are to a model, in a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import ImageSize, Json
from vitlab.cli.output import human, print_json, print_left_out, print_pairs
from vitlab.cli.progress import steps

if TYPE_CHECKING:
    from vitlab.jobs.features import Extracted

Kind = Annotated[
    str,
    typer.Option(help="pooled (what the head reads), cls (class token) or patches (a grid)."),
]
Layer = Annotated[
    int | None,
    typer.Option(help="Output of this block, from 0 or -1; without: behind the last LayerNorm."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images at once.")]
Workers = Annotated[
    int, typer.Option(min=0, help="Processes that decode files; 0: none but this one.")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data if need be.")]


def features(
    model: Annotated[str, typer.Argument(help="A run, a bundle, a weight file or a name.")],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|DATA-NAME...", help="What to compute features of."
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE.npz|.parquet", help="Where they go.")],
    kind: Kind = "pooled",
    layer: Layer = None,
    image_size: ImageSize = None,
    split: Annotated[
        str | None, typer.Option(help="train, test or all (the default) of a dataset by name.")
    ] = None,
    batch_size: BatchSize = 64,
    workers: Workers = 0,
    download: Download = False,
    json: Json = False,
) -> None:
    """Write the features of images to a file; unreadable images are listed and skipped."""
    from vitlab.jobs.features import extract

    with steps() as watch:
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
