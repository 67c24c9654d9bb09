"""Options and arguments that commands share, each declared once, and the parsers of their values.

Commands use them as annotations: `json: Json = False`. An option that only one command has is
declared in the file of that command.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vitlab.cli.completion import complete_data, complete_model
from vitlab.config import parse
from vitlab.errors import ConfigError

Size = int | tuple[int, int]


def parse_size(text: str) -> Size:
    """A side, or (height, width), from `224` or `224x320`."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r} is neither N nor HEIGHTxWIDTH, such as 224 or 224x320")
    height, width = int(parts[0]), int(parts[-1])
    return height if len(parts) == 1 else (height, width)


def size_text(size: Size) -> str:
    """The size as an option takes it."""
    return str(size) if isinstance(size, int) else "x".join(map(str, size))


def parse_batch_size(text: str) -> int | str:
    """A number of images, or `auto`."""
    if text == "auto":
        return text
    if not (text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r} is neither a number of images nor auto")
    return int(text)


def parse_workers(text: str) -> int | str:
    """A number of processes, or `auto`."""
    if text == "auto":
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a number of processes nor auto")
    return int(text)


def parse_patch(text: str) -> tuple[int, int]:
    """Row and column of a patch from `3,5`."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not ROW,COLUMN of a patch from 0, such as 3,5")
    return int(parts[0]), int(parts[1])


def parse_words(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names in `a,b`; a tuple is parsed already."""
    if isinstance(text, tuple):
        return text
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_numbers(text: str | tuple[int, ...]) -> tuple[int, ...]:
    """The numbers in `1,8,64`; a tuple is parsed already."""
    if isinstance(text, tuple):
        return text
    words = parse_words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"{text!r} is not numbers with commas between them, such as 1,8")
    return tuple(map(int, words))


def split_names(text: str | None) -> list[str] | None:
    """The names in `a,b`, empty ones included, so that the job can refuse them."""
    return None if text is None else [name.strip() for name in text.split(",")]


def parse_changes(texts: Iterable[str] | None) -> dict[str, str]:
    """Keys of `--set KEY=VALUE` with their values, still as text."""
    changes = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise typer.BadParameter(f"--set {text!r} is not key=value, such as heads=4")
        changes[key.strip()] = value
    return changes


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Keys of `--set` that are not fields of the model's config."""

    trust_architecture: bool = False


def loading(changes: Iterable[str] | None = None, **options: Any) -> dict[str, Any]:
    """Keywords for `load_weights`: the values of `--set`, and the options that are not None."""
    texts = parse_changes(changes)
    parsed = {}
    if texts:
        from vitlab.models.config import ViTConfig

        for key, text in texts.items():
            known_by = Trust if key == "trust_architecture" else ViTConfig
            parsed[key] = parse(known_by, key, text)
    return parsed | {key: value for key, value in options.items() if value is not None}


def recipe_changes(
    texts: list[str] | None,
    budgets: Mapping[str, float | None],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Changes of a recipe, as dotted fields: `--set`, the budget and the options given."""
    given = {key: value for key, value in (options or {}).items() if value is not None}
    return {**parse_changes(texts), **_budget(budgets), **given}


def _budget(budgets: Mapping[str, float | None]) -> dict[str, Any]:
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"--{' and --'.join(given)}: a run has one budget")
    for name, value in given.items():
        return {"budget": float(value), "budget_in": name}
    return {}


# All commands.

Json = Annotated[bool, typer.Option("--json", help="Print JSON, with exact numbers.")]
Language = Annotated[str, typer.Option(metavar="en|zh", help="Language of the page.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data if it is missing.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
ContactSheet = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw the images into one file.")
]
Pattern = Annotated[
    str, typer.Argument(help="Part of a name, or a glob such as 'vit_*16'; all names without it.")
]

# Models.

Model = Annotated[
    str,
    typer.Argument(help="A run, a bundle, a weight file or a name.", autocompletion=complete_model),
]
ModelOrExport = Annotated[
    str,
    typer.Argument(
        help="A run, a bundle, a weight or exported file, or a name.", autocompletion=complete_model
    ),
]
ImageSize = Annotated[
    Any,  # Size | None: Typer knows no unions
    typer.Option(metavar="N|HxW", parser=parse_size, help="Size of the images: 224 or 224x320."),
]
ClassLabels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="imagenet-1k|FILE",
        help="Names of the classes, where the model has none: one a line, or a JSON list.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a field of the model's config; repeatable."
    ),
]
MergeTokens = Annotated[
    int,
    typer.Option(
        "--merge-tokens",
        min=0,
        metavar="R",
        help="Merge the R most similar patches of each block into others: faster, less exact.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|torch|onnxruntime|openvino|aoti",
        help="Runtime of the model; auto: the fastest that fits it (docs/export.md).",
    ),
]
Layer = Annotated[
    int | None,
    typer.Option(help="Output of this block, from 0 or -1; default: after the last LayerNorm."),
]
Patch = Annotated[
    Any,  # tuple[int, int] | None: Typer would want two arguments
    typer.Option(
        metavar="ROW,COLUMN", parser=parse_patch, help="Patch whose attention is followed."
    ),
]

# Images.

Images = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGE|FOLDER|GLOB|DATA-NAME...",
        help="Images of any of these; sample/test/17 is one image of a dataset.",
    ),
]
Split = Annotated[str, typer.Option(help="Split of --data, as in evaluate.")]
ImagesAtOnce = Annotated[int, typer.Option("--batch-size", min=1, help="Images at once.")]
Workers = Annotated[int, typer.Option(min=0, help="Extra processes that decode files.")]
DrawSeed = Annotated[int, typer.Option("--seed", help="Seed of every random draw.")]

# Work in parts.

InParts = Annotated[
    bool,
    typer.Option(
        "--parts",
        help="Write parts into OUT.parts; several processes may work on them (docs/predict.md).",
    ),
]
Part = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Compute every N-th part, from the I-th on."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="local|ADDRESS",
        help="Write parts with the workers of a Ray cluster: one on this machine, or an address.",
    ),
]
Merge = Annotated[
    Path | None,
    typer.Option("--merge", metavar="OUT", help="Join the parts of OUT; nothing is computed."),
]
# Commands that train.

Out = Annotated[Path, typer.Option(metavar="RUN", help="Folder of the run.")]
TrainingData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME|FOLDER|ZIP|CSV",
        help="Images to train on: a dataset, a folder, zip or tar file of classes, or a CSV.",
        autocompletion=complete_data,
    ),
]
Epochs = Annotated[float | None, typer.Option(help="Budget in epochs.")]
Steps = Annotated[int | None, typer.Option(help="Budget in updates.")]
Minutes = Annotated[
    float | None, typer.Option(help="Budget in minutes; the speed is measured first.")
]
BatchSize = Annotated[
    Any,  # int | "auto" | None: Typer knows no unions
    typer.Option(
        metavar="N|auto",
        parser=parse_batch_size,
        help="Images per update; auto: the recipe's number, or fewer if memory is short.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
FindLr = Annotated[
    bool, typer.Option("--find-lr", help="Find the learning rate by a range test, with a plot.")
]
Sam = Annotated[
    float | None,
    typer.Option("--sam", metavar="RADIUS", help="Sharpness-aware minimisation, such as 0.05."),
]
TrainingWorkers = Annotated[
    Any,  # int | "auto" | None: Typer knows no unions
    typer.Option(
        "--workers",
        metavar="N|auto",
        parser=parse_workers,
        help="Extra processes that decode image files; auto: by the number of cores.",
    ),
]
Balance = Annotated[
    str | None,
    typer.Option(
        metavar="loss|sampling", help="Balance classes by weights in the loss or by sampling."
    ),
]
Channels = Annotated[
    int | None, typer.Option(min=1, help="Channels of the images; default: as in the files.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a field of the recipe, or model.FIELD of the model; repeatable.",
    ),
]
Licence = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Licence of the trained weights, such as CC-BY-4.0."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]

# The preprocessing of weights, for every command that reads them: the decorator
# `states_preprocessing` puts these options in the place of its parameter `preprocessing`.

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


PREPROCESSING: dict[str, Any] = {
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
    """Give a command PREPROCESSING instead of its parameter `preprocessing`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        stated = {name: given.pop(name) for name in PREPROCESSING}
        found = {
            "base" if name == "preprocessing" else name: value
            for name, value in stated.items()
            if value is not None
        }
        command(**given, preprocessing=found or None)

    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=None, annotation=option)
        for name, option in PREPROCESSING.items()
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
