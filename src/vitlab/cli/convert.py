"""`vitlab convert`: weights from one format to another."""

from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import (
    Changes,
    Force,
    ImageSize,
    Json,
    Preparation,
    loading,
    states_preprocessing,
)
from vitlab.cli.output import print_json, print_line
from vitlab.errors import WeightsError


@states_preprocessing
def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Weight file, of any format, or weights by name.")
    ],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="File to write.")],
    format: Annotated[
        str, typer.Option(help="google, timm, huggingface, torchvision, vit-pytorch or vitlab.")
    ],
    image_size: ImageSize = None,
    classes: Annotated[
        int | None, typer.Option(min=0, help="Number of classes of a new head; 0 removes it.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Attention heads, if SRC does not store them.")
    ] = None,
    changes: Changes = None,
    force: Force = False,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Convert weights between formats; values missing in SRC get defaults, which are printed."""
    from vitlab import load_weights, save_weights
    from vitlab.weights.formats.detect import layout_named

    layout_named(format)  # raises for an unknown one before anything is read
    if destination.exists() and not force:
        raise WeightsError(f"{destination} exists; --force overwrites it")
    given = loading(
        changes,
        image_size=image_size,
        classes=classes,
        heads=heads,
        preprocessing=preprocessing,
    )
    model = load_weights(source, **given)
    save_weights(model, destination, format=format)
    if json:
        print_json(
            {
                "source": source,
                "source_format": model.source.format,
                "destination": str(destination),
                "format": format,
                "assumed": list(model.source.assumed),
                "ignored": list(model.source.ignored),
            }
        )
        return
    print_line(f"{source} ({model.source.format}) -> {destination} ({format})")
    for name in model.source.ignored:
        print_line(f"left out: {name}")
