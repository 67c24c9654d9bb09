"""`vitlab models` and `vitlab summary`: the cost of all models, and one of them layer by layer."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_architecture
from vitlab.cli.options import Changes, ImageSize, Json, Pattern, loading, parse_changes
from vitlab.cli.output import human, print_json, print_line, print_table, print_text
from vitlab.config import override
from vitlab.errors import UnknownName

if TYPE_CHECKING:
    from torch import nn

LAYOUTS = ("table", "torchinfo")


def models(pattern: Pattern = "", json: Json = False) -> None:
    """List models with their parameters and the cost of one image (1 MAC = 2 FLOPs)."""
    from vitlab.models.cost import cost
    from vitlab.models.variants import our_name, variants
    from vitlab.weights.resolve import bundled_models, short_name

    costs = {name: cost(name) for name in matching(our_name(pattern), variants())}
    if json:
        print_json(
            [
                {
                    "name": name,
                    "parameters": found.parameters,
                    "flops": found.flops,
                    "macs": found.macs,
                    "tokens": found.tokens,
                }
                for name, found in costs.items()
            ]
        )
        return
    print_table(
        ("name", "parameters", "FLOPs", "MACs", "tokens"),
        (
            (
                name,
                human(found.parameters),
                human(found.flops),
                human(found.macs),
                "-" if found.tokens is None else str(found.tokens),
            )
            for name, found in costs.items()
        ),
    )
    inside = [name for name in bundled_models() if name.partition(".")[0] in costs]
    if inside:
        short = ((short_name(name), name) for name in inside)
        names = ", ".join(f"{word} ({name})" if word else name for word, name in short)
        print_line()
        print_line(f"trained, inside the package: {names}; others: vitlab weights list")


def matching(pattern: str, names: Iterable[str], *, kind: str = "model") -> list[str]:
    """Names that match a glob or contain a plain word; raises if there are none."""
    known = list(names)
    glob = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in known if fnmatchcase(name, glob)]
    if not found:
        raise UnknownName(kind, pattern, known)
    return found


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

    from vitlab.models.variants import create_model, known_name, variant

    size = {} if image_size is None else {"image_size": image_size}
    config = override(variant(known_name(name)), {**parse_changes(changes), **size})
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
