"""`vitlab finetune`: fine-tune weights of any format on labelled images."""

from typing import Annotated

import typer

from vitlab.cli.completion import complete_model
from vitlab.cli.options import (
    Balance,
    BatchSize,
    Channels,
    Epochs,
    FindLr,
    ImageSize,
    Json,
    Language,
    Licence,
    Minutes,
    Out,
    Preparation,
    Resume,
    Sam,
    Seed,
    Settings,
    Steps,
    TrainingData,
    TrainingWorkers,
    recipe_changes,
    states_preprocessing,
)
from vitlab.cli.train import show_run


@states_preprocessing
def finetune(
    out: Out,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WEIGHTS",
            help="A weight file, a bundle, a run or weights by name.",
            autocompletion=complete_model,
        ),
    ] = None,
    data: TrainingData = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    image_size: ImageSize = None,
    freeze: Annotated[
        int | None, typer.Option(min=1, help="Number of first encoder blocks to freeze.")
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(metavar="RANK", min=1, help="Train low-rank updates (LoRA) of this rank."),
    ] = None,
    linear_probe: Annotated[
        bool, typer.Option("--linear-probe", help="Train only the head.")
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's protocol: SGD, batches of 512, cosine.")
    ] = False,
    new_head: Annotated[
        bool,
        typer.Option(
            "--new-head", help="Start every class at zero, also those that the weights know."
        ),
    ] = False,
    find_lr: FindLr = False,
    sam: Sam = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Classifier to distil from.", autocompletion=complete_model
        ),
    ] = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    balance: Balance = None,
    workers: TrainingWorkers = None,
    channels: Channels = None,
    changes: Settings = None,
    licence: Licence = None,
    resume: Resume = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch data and weights that are missing.")
    ] = False,
    preprocessing: Preparation = None,
    language: Language = "en",
    json: Json = False,
) -> None:
    """Fine-tune a model with settings chosen from your data; each choice is explained."""
    from vitlab.jobs.finetune import finetune as run_finetuning

    wanted = recipe_changes(
        changes,
        {"epochs": epochs, "steps": steps, "minutes": minutes},
        {
            "batch_size": batch_size,
            "seed": seed,
            "balance": balance,
            "workers": workers,
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
            preprocessing=preprocessing,
            changes=wanted,
            resume=resume,
            download=download,
            licence=licence,
            watcher=watcher,
        ),
        out,
        language=language,
        json=json,
    )
