"""`vitlab train`: a recipe, data, and a folder for what comes of it."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.judged import headline
from vitlab.cli.live import live_view
from vitlab.cli.options import Json, parse_batch_size, parse_changes
from vitlab.cli.output import print_json
from vitlab.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vitlab.tasks.job import Watcher
    from vitlab.tasks.job_result import Run


def train(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Folder of the run.")],
    recipe: Annotated[str, typer.Argument(help="A recipe's name.")] = "default",
    data: Annotated[
        str | None, typer.Option(metavar="NAME|FOLDER|CSV", help="What to train on.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in epochs.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in updates.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Budget in minutes; the speed is measured first.")
    ] = None,
    batch_size: Annotated[
        Any,  # int | "auto" | None: Typer knows no unions
        typer.Option(
            metavar="N|auto",
            parser=parse_batch_size,
            help="Images of one update; auto: the recipe's number, or less if memory is short.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    balance: Annotated[
        str | None,
        typer.Option(
            metavar="loss|sampling",
            help="Let rare classes count as much: weigh them, or draw them oftener.",
        ),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(min=1, help="Channels of the images; else as files have them.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a field of the recipe, or model.FIELD of the model; repeatable.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data if it is missing.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model; interrupted at any moment, it continues with --resume."""
    from vitlab.tasks.train import train as run_training

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
    if resume and wanted:
        raise ConfigError(f"--resume continues the run as it was decided, without {min(wanted)}")
    show_run(
        lambda watcher: run_training(
            recipe,
            data=data,
            out=out,
            changes=wanted,
            resume=resume,
            download=download,
            watcher=watcher,
        ),
        out,
        json=json,
    )


def show_run(job: "Callable[[Watcher], Run]", out: Path, *, json: bool) -> None:
    """Do a job in sight of the user, and print what came of it."""
    from vitlab.tasks.job import Watcher
    from vitlab.tasks.run_folder import resume_command

    with live_view(sys.stderr if json else sys.stdout) as view:
        watcher = Watcher(
            begin=lambda plan, files: view.begin(plan), metric=view.metric, note=view.note
        )
        try:
            run = job(watcher)
        except Interrupted as stop:
            print(f"{stop}; continue: {resume_command(out)}", file=sys.stderr)
            raise typer.Exit(128 + stop.signal) from None
    if json:
        print_json({"bundle": str(run.bundle), "report": str(run.report), **run.metrics})
    else:
        print(f"{run.split} {headline(run.evaluation)}")
        print(f"model:  {run.bundle}\nreport: {run.report}")


def gather_changes(
    texts: list[str] | None, of_budget: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the options of a command change, as dotted fields."""
    given = {key: value for key, value in options.items() if value is not None}
    return {**parse_changes(texts), **of_budget, **given}


def budget(**budgets: float | None) -> dict[str, Any]:
    """The one budget that was given, if any, as changes of a recipe."""
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"--{' and --'.join(given)}: a run has one budget")
    for name, value in given.items():
        return {"budget": float(value), "budget_in": name}
    return {}
