"""Options that several commands share, and how their values are written."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vitlab.config import parse

Size = int | tuple[int, int]


def parse_size(text: str) -> Size:
    """A side, or (height, width), from `224` or `224x320`."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r} is neither N nor HEIGHTxWIDTH, such as 224 or 224x320")
    height, width = int(parts[0]), int(parts[-1])
    return height if len(parts) == 1 else (height, width)


def parse_batch_size(text: str) -> int | str:
    """A number of images, or the word that lets one be found."""
    if text == "auto":
        return text
    if not (text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r} is neither a number of images nor auto")
    return int(text)


def parse_words(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names in `a,b`; what is parsed already stays."""
    if isinstance(text, tuple):
        return text
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_numbers(text: str | tuple[int, ...]) -> tuple[int, ...]:
    """The numbers in `1,8,64`; what is parsed already stays."""
    if isinstance(text, tuple):
        return text
    words = parse_words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"{text!r} is not numbers with commas between them, such as 1,8")
    return tuple(map(int, words))


def parse_changes(texts: Iterable[str] | None) -> dict[str, str]:
    """Keys and their new values, still as text."""
    changes = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise typer.BadParameter(f"--set {text!r} is not key=value, such as heads=4")
        changes[key.strip()] = value
    return changes


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """What `--set` takes besides fields of the model's config."""

    trust_architecture: bool = False


def loading(
    changes: Iterable[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Keywords for `load_weights`: what `--set` says, and the options that were given."""
    texts = parse_changes(changes)
    parsed = {}
    if texts:
        from vitlab.models.config import ViTConfig

        for key, text in texts.items():
            known_by = Trust if key == "trust_architecture" else ViTConfig
            parsed[key] = parse(known_by, key, text)
    return parsed | {key: value for key, value in options.items() if value is not None}


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
        help="Merge the R most alike patches of each block into others: faster, less exact.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|torch|onnxruntime|openvino|aoti",
        help="What computes; auto: what suits the model (docs/export.md).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with exact numbers.")]


# Options of the commands that train: where to, on what, for how long.

Out = Annotated[Path, typer.Option(metavar="RUN", help="Folder of the run.")]
Data = Annotated[str | None, typer.Option(metavar="NAME|FOLDER|CSV", help="What to train on.")]
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
        help="Images of one update; auto: the usual number, or less if memory is short.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Balance = Annotated[
    str | None,
    typer.Option(
        metavar="loss|sampling",
        help="Let rare classes count as much: weigh them, or draw them oftener.",
    ),
]
Channels = Annotated[
    int | None, typer.Option(min=1, help="Channels of the images; else as files have them.")
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
    typer.Option(metavar="NAME", help="Licence of the weights to come, such as CC-BY-4.0."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data if it is missing.")]
