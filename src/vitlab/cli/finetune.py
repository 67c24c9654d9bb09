"""`vitlab finetune`: from anybody's weights and a folder of images to a classifier."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitlab.cli.options import ImageSize, Json, parse_batch_size
from vitlab.cli.train import budget, gather_changes, show_run
from vitlab.errors import ConfigError


def finetune(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Folder of the run.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WEIGHTS", help="A weight file, a bundle, a run or fetched weights."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME|FOLDER", help="What to train on.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in epochs.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in updates.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Budget in minutes; the speed is measured first.")
    ] = None,
    image_size: ImageSize = None,
    freeze: Annotated[
        int | None, typer.Option(min=0, help="First encoder blocks that stay as they are.")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(metavar="RANK", min=1, help="Learn updates of low rank instead.")
    ] = None,
    linear_probe: Annotated[
        bool, typer.Option("--linear-probe", help="Learn the head alone.")
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's protocol: SGD, batches of 512, cosine.")
    ] = False,
    find_lr: Annotated[
        bool, typer.Option("--find-lr", help="Find the learning rate first, and draw how.")
    ] = False,
    sam: Annotated[
        float | None,
        typer.Option(metavar="RADIUS", help="Sharpness-aware minimisation, such as 0.05."),
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A classifier to learn from as well.")
    ] = None,
    batch_size: Annotated[
        Any,  # int | "auto" | None: Typer knows no unions
        typer.Option(metavar="N|auto", parser=parse_batch_size, help="Images of one update."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    balance: Annotated[
        str | None,
        typer.Option(metavar="loss|sampling", help="Let rare classes count as much as others."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any field of the settings."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data if it is missing.")
    ] = False,
    json: Json = False,
) -> None:
    """Fine-tune a model; it looks at your data first, and says what it chose and why."""
    from vitlab.tasks.finetune import finetune as run_finetuning

    wanted = gather_changes(
        changes,
        budget(epochs=epochs, steps=steps, minutes=minutes),
        {"batch_size": batch_size, "seed": seed, "balance": balance},
    )
    if resume and wanted:
        raise ConfigError(f"--resume continues the run as it was decided, without {min(wanted)}")
    show_run(
        lambda watcher: run_finetuning(
            start,
            data=data,
            out=out,
            image_size=image_size,
            freeze=freeze,
            lora=lora,
            linear_probe=linear_probe,
            paper=paper,
            find_rate=find_lr,
            sam=sam,
            teacher=teacher,
            changes=wanted,
            resume=resume,
            download=download,
            watcher=watcher,
        ),
        out,
        json=json,
    )
