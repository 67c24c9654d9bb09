"""`vitlab summary`: a model layer by layer."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import Changes, ImageSize, Json, loading, parse_changes
from vitlab.cli.output import print_json, print_text
from vitlab.config import override
from vitlab.errors import UnknownName

if TYPE_CHECKING:
    from torch import nn


def summary(
    model: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="A model, a weight file, or weights by name.")
    ],
    image_size: ImageSize = None,
    changes: Changes = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in the batch.")] = 1,
    depth: Annotated[int, typer.Option(min=0, help="Levels of modules to show.")] = 3,
    json: Json = False,
) -> None:
    """Show output shapes, parameters and FLOPs of every layer."""
    from vitlab.models.cost import image_shape
    from vitlab.models.summary import summary as summarise

    built = _build(model, image_size, changes)
    found = summarise(built, input_size=(batch, *image_shape(built)), depth=depth)
    if json:
        print_json(found.to_dict())
    else:
        print_text(str(found))


def _build(model: str, image_size: Any, changes: list[str] | None) -> "nn.Module":
    """The model of a weight file, or of a name, which then takes no memory."""
    import torch

    from vitlab.models.build import create_model
    from vitlab.models.variants import variant

    if is_path(model):
        from vitlab import load_weights

        return load_weights(model, **loading(changes, image_size=image_size))
    size = {} if image_size is None else {"image_size": image_size}
    config = override(variant(model), {**parse_changes(changes), **size})
    with torch.device("meta"):
        return create_model(config)


def is_path(model: str) -> bool:
    """A bare word is a name first, a path when it exists and no such name does."""
    from vitlab.models.variants import variant, variants
    from vitlab.weights.bundled import bundled_name, bundled_names
    from vitlab.weights.published import named

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
