"""Options of the commands that train: where to, on what, for how long."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitlab.cli.options import parse_batch_size

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
