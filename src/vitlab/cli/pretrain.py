"""`vitlab pretrain`: train an encoder on images without labels."""

from typing import Annotated, Any

import typer

from vitlab.cli.options import (
    BatchSize,
    Channels,
    Download,
    Epochs,
    FindLr,
    Json,
    Language,
    Licence,
    Minutes,
    Out,
    Resume,
    Sam,
    Seed,
    Settings,
    Steps,
    TrainingData,
    TrainingWorkers,
    recipe_changes,
)
from vitlab.cli.train import show_run
from vitlab.errors import ConfigError


def pretrain(
    out: Out,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="masked-patch|mae",
            help="Predict mean colours of masked patches, or their pixels; default: mae.",
        ),
    ] = None,
    data: TrainingData = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    mask: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the patches that are masked.")
    ] = None,
    decoder_width: Annotated[
        int | None, typer.Option(metavar="N", help="Width of mae's decoder.")
    ] = None,
    decoder_depth: Annotated[
        int | None, typer.Option(metavar="N", help="Blocks of mae's decoder.")
    ] = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    find_lr: FindLr = False,
    sam: Sam = None,
    workers: TrainingWorkers = None,
    channels: Channels = None,
    changes: Settings = None,
    licence: Licence = None,
    resume: Resume = False,
    download: Download = False,
    language: Language = "en",
    json: Json = False,
) -> None:
    """Pretrain a model on images without labels, for `vitlab finetune --from RUN`."""
    from vitlab.jobs.train import pretrain as run_pretraining

    wanted = recipe_changes(
        changes,
        {"epochs": epochs, "steps": steps, "minutes": minutes},
        {
            **_objective_changes(objective, mask, decoder_width, decoder_depth),
            "batch_size": batch_size,
            "seed": seed,
            "optimizer.sam": sam,
            "workers": workers,
            "model.channels": channels,
        },
    )
    show_run(
        lambda watcher: run_pretraining(
            objective,
            data=data,
            out=out,
            changes=wanted,
            find_lr=find_lr,
            resume=resume,
            download=download,
            licence=licence,
            watcher=watcher,
        ),
        out,
        language=language,
        json=json,
    )


def _objective_changes(
    objective: str | None, mask: float | None, width: int | None, depth: int | None
) -> dict[str, Any]:
    """Changes of the recipe by the options of the objective."""
    if objective == "masked-patch":
        if width is not None or depth is not None:
            raise ConfigError("--decoder-width and --decoder-depth: masked-patch has no decoder")
        return {"masked_patch.mask": mask}
    return {"mae.mask": mask, "mae.decoder_width": width, "mae.decoder_depth": depth}
