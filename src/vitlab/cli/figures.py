"""`vitlab figures`: the paper's figures about a model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import (
    Download,
    DrawSeed,
    Json,
    Model,
    Preparation,
    split_names,
    states_preprocessing,
)
from vitlab.cli.output import print_json, print_left_out, print_line, print_pairs
from vitlab.cli.progress import job_progress

if TYPE_CHECKING:
    from vitlab.jobs.figures import Figures


@states_preprocessing
def figures(
    model: Model,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for PNG, SVG and JSON.")],
    data: Annotated[
        str,
        typer.Option(help="Images: a folder, pattern, file, or a dataset's test images."),
    ] = "sample",
    images: Annotated[int, typer.Option(min=1, help="Number of images, drawn at random.")] = 128,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="filters, positions, attention-distance, attention-entropy, feature-pca, tsne "
            "or cka; default: all.",
        ),
    ] = None,
    seed: DrawSeed = 0,
    download: Download = False,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Draw a model's filters, positions, attention distance and entropy, features and layers."""
    from vitlab.jobs.figures import figures as run

    with job_progress() as watch:
        found = run(
            model,
            output,
            data=data,
            images=images,
            only=split_names(only),
            seed=seed,
            download=download,
            preprocessing=preprocessing,
            watch=watch,
        )
    for reason in found.lacking.values():
        print_line(f"left out: {reason}", file=sys.stderr)
    print_left_out(found.broken)
    if json:
        print_json(_facts(found))
        return
    print_pairs(_lines(found, output))


def _facts(found: "Figures") -> dict[str, Any]:
    return {
        "model": found.model,
        "random_weights": found.fresh,
        "images": found.images,
        "figures": {
            name: {
                "caption": figure.caption,
                "files": [str(file) for file in found.files if file.stem == name],
            }
            for name, figure in found.figures.items()
        },
        "lacking": found.lacking,
        "broken": found.broken,
    }


def _lines(found: "Figures", output: Path) -> list[tuple[str, str]]:
    weights = " (random weights)" if found.fresh else ""
    lines = [("model", f"{found.model}{weights}")]
    if found.images:
        lines.append(("images", f"{found.images:,}"))
    return [*lines, ("figures", ", ".join(found.figures)), ("folder", str(output))]
