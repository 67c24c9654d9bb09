"""`vitlab train`: a recipe, data, and a folder for what comes of it."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.judged import headline, pretraining_headline
from vitlab.cli.live import live_view
from vitlab.cli.options import (
    Balance,
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
    parse_changes,
)
from vitlab.cli.output import print_json, print_line
from vitlab.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vitlab.jobs.run import Watcher
    from vitlab.jobs.run_result import Run


def train(
    out: Out,
    recipe: Annotated[str, typer.Argument(help="A recipe's name.")] = "default",
    data: Data = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
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
    """Train a model; an interrupted run continues with --resume."""
    from vitlab.jobs.train import train as run_training

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
        lambda watcher: run_training(
            recipe,
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


def show_run(job: "Callable[[Watcher], Run]", out: Path, *, json: bool) -> None:
    """Do a job in sight of the user, and print what came of it."""
    from vitlab.jobs.run import Watcher
    from vitlab.jobs.run_folder import resume_command

    with live_view(sys.stderr if json else sys.stdout) as view:
        watcher = Watcher(
            begin=lambda plan, files: view.begin(plan),
            metric=view.metric,
            files=view.files,
            note=view.note,
        )
        try:
            run = job(watcher)
        except Interrupted as stop:
            print_line(f"{stop}; continue: {resume_command(out)}", file=sys.stderr)
            raise typer.Exit(128 + stop.signal) from None
    if json:
        files = {"bundle": str(run.bundle), "report": str(run.report)}
        counts = {name: found.to_dict() for name, found in run.counts.items()}
        print_json({**files, **run.metrics, **run.compute.to_dict(), "counts": counts})
    else:
        for line in _first_lines(run):
            print_line(line)
        print_line(f"cost:   {cost_line(run)}")
        print_line(f"model:  {run.bundle}")
        print_line(f"report: {run.report}")
        print_line(f"next:   {_next(run, out)}")


def _first_lines(run: "Run") -> Iterator[str]:
    """What the model is worth, where anything tells."""
    if run.evaluation is not None:
        yield f"{run.split} {headline(run.evaluation)}"
        counts = ", ".join(f"{name} {found.text}" for name, found in run.counts.items())
        yield f"images: {counts}"
        for sentence in run.absent:
            yield f"warning: {sentence}"
    elif run.metrics:
        yield pretraining_headline(run.split, run.metrics)


def _next(run: "Run", out: Path) -> str:
    if run.evaluation is not None:
        return f"{shlex.join(['vitlab', 'predict', str(out)])} IMAGE|FOLDER"
    return f"{shlex.join(['vitlab', 'finetune', '--from', str(out)])} --data FOLDER --out RUN"


def cost_line(run: "Run") -> str:
    """What the training took, all interruptions included."""
    from vitlab.report.html import duration, in_pflops

    spent = run.compute
    seen = f"{spent.images:,} images in {spent.steps:,} steps"
    return f"{in_pflops(spent.flops)} in {duration(spent.seconds)} ({seen})"


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
