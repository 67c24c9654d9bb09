"""`vitlab finetune`: from anybody's weights and a folder of images to a classifier."""

from typing import Annotated

import typer

from vitlab.cli.options import (
    Balance,
    BatchSize,
    Channels,
    Data,
    Download,
    Epochs,
    ImageSize,
    Json,
    Licence,
    Minutes,
    Out,
    Resume,
    Seed,
    Settings,
    Steps,
)
from vitlab.cli.train import budget, gather_changes, show_run


def finetune(
    out: Out,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WEIGHTS", help="A weight file, a bundle, a run or weights by name."
        ),
    ] = None,
    data: Data = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    image_size: ImageSize = None,
    freeze: Annotated[
        int | None, typer.Option(min=1, help="First encoder blocks that stay as they are.")
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
    new_head: Annotated[
        bool,
        typer.Option("--new-head", help="Every class starts at zero, known by name or not."),
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
    batch_size: BatchSize = None,
    seed: Seed = None,
    balance: Balance = None,
    channels: Channels = None,
    changes: Settings = None,
    licence: Licence = None,
    resume: Resume = False,
    download: Download = False,
    json: Json = False,
) -> None:
    """Fine-tune a model with settings chosen from your data; each choice is explained."""
    from vitlab.jobs.finetune import finetune as run_finetuning

    wanted = gather_changes(
        changes,
        budget(epochs=epochs, steps=steps, minutes=minutes),
        {
            "batch_size": batch_size,
            "seed": seed,
            "balance": balance,
            "model.channels": channels,
        },
    )
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
            new_head=new_head,
            find_lr=find_lr,
            sam=sam,
            teacher=teacher,
            changes=wanted,
            resume=resume,
            download=download,
            licence=licence,
            watcher=watcher,
        ),
        out,
        json=json,
    )
