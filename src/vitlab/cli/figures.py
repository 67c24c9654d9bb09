"""`vitlab figures`: the paper's figures about a model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.features import Download
from vitlab.cli.options import Json
from vitlab.cli.output import print_json, print_left_out, print_line, print_pairs
from vitlab.cli.progress import steps

if TYPE_CHECKING:
    from vitlab.jobs.figures import Figures


def figures(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A run, a bundle, a weight file, or a name (random weights)."
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for PNG, SVG and JSON.")],
    data: Annotated[
        str,
        typer.Option(
            help="Images to look at: a folder, pattern, file, or a dataset's test images."
        ),
    ] = "sample",
    images: Annotated[int, typer.Option(min=1, help="How many of them, drawn at random.")] = 128,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Of filters, positions, attention-distance, attention-entropy, feature-pca, tsne "
            "and cka; without: all.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    download: Download = False,
    json: Json = False,
) -> None:
    """Draw a model's filters, positions, attention distance and entropy, features and layers."""
    from vitlab.jobs.figures import figures as run

    with steps() as watch:
        found = run(
            model,
            output,
            data=data,
            images=images,
            only=None if only is None else [name.strip() for name in only.split(",")],
            seed=seed,
            download=download,
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
    weights = " (random weights: nothing has been learned)" if found.fresh else ""
    lines = [("model", f"{found.model}{weights}")]
    if found.images:
        lines.append(("images", f"{found.images:,}"))
    return [*lines, ("figures", ", ".join(found.figures)), ("folder", str(output))]
