"""`vitlab summary`: a model layer by layer."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_architecture
from vitlab.cli.options import Changes, ImageSize, Json, loading, parse_changes
from vitlab.cli.output import print_json, print_text
from vitlab.config import override
from vitlab.errors import UnknownName

if TYPE_CHECKING:
    from torch import nn

LAYOUTS = ("table", "torchinfo")


def summary(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH",
            help="A model, a weight file, or weights by name.",
            autocompletion=complete_architecture,
        ),
    ],
    image_size: ImageSize = None,
    changes: Changes = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in the batch.")] = 1,
    depth: Annotated[int, typer.Option(min=0, help="Levels of modules to show.")] = 3,
    layout: Annotated[
        str, typer.Option(metavar="table|torchinfo", help="Layout of the text.")
    ] = "table",
    json: Json = False,
) -> None:
    """Show output shapes, parameters and FLOPs of every layer."""
    if layout not in LAYOUTS:
        raise UnknownName("layout", layout, LAYOUTS)
    weights = is_path(model)  # raises for an unknown name before torch is imported
    from vitlab.models.cost import image_shape
    from vitlab.models.summary import summary as summarise

    built = _load(model, image_size, changes) if weights else _build(model, image_size, changes)
    found = summarise(built, input_size=(batch, *image_shape(built)), depth=depth)
    if json:
        print_json(found.to_dict())
    elif layout == "torchinfo":
        from vitlab.models.summary_layout import torchinfo_layout

        print_text(torchinfo_layout(found))
    else:
        print_text(str(found))


def _load(path: str, image_size: Any, changes: list[str] | None) -> "nn.Module":
    from vitlab import load_weights

    return load_weights(path, **loading(changes, image_size=image_size))


def _build(name: str, image_size: Any, changes: list[str] | None) -> "nn.Module":
    """Model of a name, built without memory for its weights."""
    import torch

    from vitlab.models.variants import create_model, variant

    size = {} if image_size is None else {"image_size": image_size}
    config = override(variant(name), {**parse_changes(changes), **size})
    with torch.device("meta"):
        return create_model(config)


def is_path(model: str) -> bool:
    """True for weights; a bare word is a model's name first, a path if there is no such model."""
    from vitlab.models.variants import variant, variants
    from vitlab.weights.resolve import bundled_name, bundled_names, named

    if "/" in model or os.sep in model or bundled_name(model) or named(model):
        return True
    try:
        variant(model)
    except UnknownName:
        if not Path(model).exists():
            choices = (*bundled_names(), *variants())
            raise UnknownName("model or file", model, choices) from None
        return True
    return False
