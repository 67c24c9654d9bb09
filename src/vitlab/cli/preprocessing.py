"""Options that state the preprocessing of weights, declared once for every command that reads them.

A command has one parameter, `preprocessing: Preparation = None`, and the decorator
`states_preprocessing`, which puts the options in its place.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from vitlab.cli.options import parse_words

Preparation = dict[str, Any] | None
"""Options that were given, as `vitlab.load_weights` takes them; None: none was given."""


def parse_channels(text: str | tuple[float, ...]) -> tuple[float, ...]:
    """The numbers in `0.5` or `0.485,0.456,0.406`; a tuple is parsed already."""
    if isinstance(text, tuple):
        return text
    try:
        numbers = tuple(map(float, parse_words(text)))
    except ValueError:
        numbers = ()
    if not numbers:
        raise typer.BadParameter(
            f"{text!r} is neither a number nor one for each channel, such as 0.485,0.456,0.406"
        )
    return numbers


def _option(annotation: Any, metavar: str, help: str, **settings: Any) -> Any:
    option = typer.Option(metavar=metavar, help=help, rich_help_panel="Preprocessing", **settings)
    return Annotated[annotation, option]


OPTIONS: dict[str, Any] = {
    "preprocessing": _option(
        str | None,
        "imagenet|half|FILE",
        "How images are prepared, where the weights do not say it, or instead: a usual way, or a "
        "JSON file of timm, transformers or a bundle.",
    ),
    "mean": _option(Any, "X[,X,X]", "Mean of each channel, from 0 to 1.", parser=parse_channels),
    "std": _option(Any, "X[,X,X]", "Standard deviation of each channel.", parser=parse_channels),
    "interpolation": _option(
        str | None, "nearest|bilinear|bicubic|lanczos", "How images are resized."
    ),
    "crop": _option(
        float | None, "SHARE", "Part of the resized side that is kept: 0.875 is 224 of 256."
    ),
}


def states_preprocessing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command OPTIONS instead of its parameter `preprocessing`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        stated = {name: given.pop(name) for name in OPTIONS}
        found = {
            "base" if name == "preprocessing" else name: value
            for name, value in stated.items()
            if value is not None
        }
        command(**given, preprocessing=found or None)

    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=None, annotation=OPTIONS[name]) for name in OPTIONS
    ]
    kept = [
        parameter.replace(kind=kind)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "preprocessing"
    ]
    place = next((i for i, parameter in enumerate(kept) if parameter.name == "json"), len(kept))
    ordered = [*kept[:place], *added, *kept[place:]]
    with_options.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in ordered} | {"return": None}
    return with_options
