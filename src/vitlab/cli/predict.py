"""`vitlab predict`: what is on these images."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import Changes, ClassLabels, Json, loading
from vitlab.cli.output import print_json, print_table
from vitlab.config import to_dict


def predict(
    model: Annotated[
        str, typer.Argument(help="A run, a bundle, a weight file or fetched weights.")
    ],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    top: Annotated[int, typer.Option(min=1, help="Labels to show for each image.")] = 5,
    labels: ClassLabels = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Classify images; one that cannot be read does not stop the others."""
    from vitlab import load

    predictions = load(model, labels=labels, **loading(changes)).predict(images, top=top)
    if json:
        print_json([to_dict(prediction) for prediction in predictions])
    elif any(prediction.top for prediction in predictions):
        print_table(
            ("image", "label", "probability"),
            (
                (str(prediction.path), label, f"{probability:.1%}")
                for prediction in predictions
                for label, probability in prediction.top
            ),
        )
    broken = [prediction.error for prediction in predictions if prediction.error]
    for error in broken:
        print("error:", error, file=sys.stderr)
    if broken:
        raise typer.Exit(2)
