"""`--find-lr`: the learning rate of a run, by a range test before step 1."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitlab.errors import ConfigError
from vitlab.jobs.training_run import Plan, TrainingRun
from vitlab.training.find_lr import check_plots, draw_trials, find_lr, suggested_lr
from vitlab.training.loop import RunFiles


def check_range_test(changes: Mapping[str, Any]) -> None:
    """Raise if the plot cannot be drawn, or the changes set the learning rate."""
    if "optimizer.lr" in changes:
        raise ConfigError(
            "find_lr and optimizer.lr: either finds or sets the learning rate; choose one"
        )
    check_plots()


def find_learning_rate(run: TrainingRun) -> None:
    """Set the learning rate that a range test finds; `find-lr.png` is drawn when the run begins."""
    watcher = run.watcher
    watcher.note("range test: the loss while the learning rate grows from step to step ...")
    trials = find_lr(
        run.model, run.plan.train, run.loader, loss_of=run.learning.goal.loss, world=run.world
    )
    lr = suggested_lr(trials)
    watcher.note(f"range test: learning rate {lr:g} (find-lr.png)")

    def begin(plan: Plan, files: RunFiles) -> None:
        if run.world.rank == 0:
            draw_trials(trials, lr, files.folder / "find-lr.png")
        watcher.begin(plan, files)

    run.set_lr(lr)
    run.watcher = replace(watcher, begin=begin)
