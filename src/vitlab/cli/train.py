"""`vitlab train`: train a model by a recipe, into the folder of a run."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from vitlab.cli.completion import complete_recipe
from vitlab.cli.options import (
    Balance,
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
from vitlab.cli.output import print_json, print_line
from vitlab.cli.progress import run_with_progress

if TYPE_CHECKING:
    from vitlab.jobs.run_result import RunResult
    from vitlab.jobs.training_run import Watcher


class TrainCommand(TyperCommand):
    """The command with the recipes in its help, read only when the help is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with a paragraph per recipe at its end."""
        from vitlab.training.recipes.from_scratch import described

        listed = (f"{name}: {text} {found or ''}".rstrip() for name, text, found in described())
        self.epilog = "\n\n".join((RECIPES, *listed, LARGER))
        super().format_help(ctx, formatter)


RECIPES = "Recipes, with test accuracies as measured (docs/experiments.md):"
LARGER = (
    "ImageNet has no recipe: 300 epochs of vit_ti16 are 2,900 PFLOPs, 16,000 times cifar10_30min. "
    "Start from published weights instead: vitlab finetune --from vit_ti16.deit --download."
)


def train(
    out: Out,
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name.", autocompletion=complete_recipe)
    ] = "default",
    data: TrainingData = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    balance: Balance = None,
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
    """Train a model; an interrupted run continues with --resume."""
    from vitlab.jobs.train import train as run_training

    wanted = recipe_changes(
        changes,
        {"epochs": epochs, "steps": steps, "minutes": minutes},
        {
            "batch_size": batch_size,
            "seed": seed,
            "balance": balance,
            "optimizer.sam": sam,
            "workers": workers,
            "model.channels": channels,
        },
    )
    show_run(
        lambda watcher: run_training(
            recipe,
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


def show_run(
    job: "Callable[[Watcher], RunResult]", out: Path, *, language: str, json: bool
) -> None:
    """Run a training job with progress and print its result; `language` is that of the report."""
    from vitlab.report.language import speaking

    with speaking(language):
        run = run_with_progress(job, out, json=json)
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


def _first_lines(run: "RunResult") -> Iterator[str]:
    """Metrics and counts of the test images, if there are any."""
    if run.evaluation is not None:
        yield f"{run.split} {run.evaluation.headline}"
        counts = ", ".join(f"{name} {found.text}" for name, found in run.counts.items())
        yield f"images: {counts}"
        for sentence in run.absent:
            yield f"warning: {sentence}"
    elif run.metrics:
        yield _pretraining_headline(run.split, run.metrics)


def _pretraining_headline(split: str, metrics: Mapping[str, float]) -> str:
    """One line: loss and accuracy on masked patches."""
    found = {name.removeprefix(f"{split}_"): value for name, value in metrics.items()}
    score = f"R2 {found['r2']:.3f}" if "r2" in found else f"{found['colours_right']:.1%} right"
    images = f"{found['images']:,} images"
    return f"{split} loss {found['loss']:.3f}, {score} of masked patches ({images})"


def _next(run: "RunResult", out: Path) -> str:
    if run.evaluation is not None:
        return f"{shlex.join(['vitlab', 'predict', str(out)])} IMAGE|FOLDER"
    return f"{shlex.join(['vitlab', 'finetune', '--from', str(out)])} --data FOLDER --out RUN"


def cost_line(run: "RunResult") -> str:
    """Compute, time, images and steps of the training, over all interruptions."""
    from vitlab.report.numbers import duration, in_pflops

    spent = run.compute
    seen = f"{spent.images:,} images in {spent.steps:,} steps"
    return f"{in_pflops(spent.flops)} in {duration(spent.seconds)} ({seen})"
