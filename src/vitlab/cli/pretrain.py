"""`vitlab pretrain`: an encoder from images without labels."""

from typing import Annotated, Any

import typer

from vitlab.cli.options import (
    BatchSize,
    Channels,
    Data,
    Download,
    Epochs,
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
from vitlab.errors import ConfigError


def pretrain(
    out: Out,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="masked-patch|mae",
            help="Tell mean colours of corrupted patches, or draw left-out ones; else mae.",
        ),
    ] = None,
    data: Data = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    mask: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the patches that is hidden.")
    ] = None,
    decoder_width: Annotated[
        int | None, typer.Option(metavar="N", help="Width of mae's decoder.")
    ] = None,
    decoder_depth: Annotated[
        int | None, typer.Option(metavar="N", help="Blocks of mae's decoder.")
    ] = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    channels: Channels = None,
    changes: Settings = None,
    licence: Licence = None,
    resume: Resume = False,
    download: Download = False,
    json: Json = False,
) -> None:
    """Pretrain a model on images without labels, for `vitlab finetune --from RUN`."""
    from vitlab.jobs.pretrain import pretrain as run_pretraining

    wanted = gather_changes(
        changes,
        budget(epochs=epochs, steps=steps, minutes=minutes),
        {
            **_of_objective(objective, mask, decoder_width, decoder_depth),
            "batch_size": batch_size,
            "seed": seed,
            "model.channels": channels,
        },
    )
    show_run(
        lambda watcher: run_pretraining(
            objective,
            data=data,
            out=out,
            changes=wanted,
            resume=resume,
            download=download,
            licence=licence,
            watcher=watcher,
        ),
        out,
        json=json,
    )


def _of_objective(
    objective: str | None, mask: float | None, width: int | None, depth: int | None
) -> dict[str, Any]:
    """Options by the names of their settings."""
    if objective == "masked-patch":
        if width is not None or depth is not None:
            raise ConfigError("--decoder-width and --decoder-depth: masked-patch has no decoder")
        return {"masked_patch.mask": mask}
    return {"mae.mask": mask, "mae.decoder_width": width, "mae.decoder_depth": depth}
