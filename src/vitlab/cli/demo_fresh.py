"""The demo of a package without a model inside: what is printed of it."""

from pathlib import Path
from typing import Any

from vitlab.cli.demo import print_shown, shown_as_dicts, watched
from vitlab.cli.judged import headline
from vitlab.cli.output import print_json


def train_and_show(out: Path, changes: dict[str, Any], *, json: bool) -> None:
    """Train a small ViT on images inside the package, evaluate it, and look at what it says."""
    from vitlab.inference.classifier import load
    from vitlab.tasks.demo import show
    from vitlab.tasks.demo_fresh import train_fresh

    run = watched(
        out, lambda watcher: train_fresh(out, changes=changes, watcher=watcher), json=json
    )
    shown = show(load(run.bundle))
    if json:
        files = {"bundle": str(run.bundle), "report": str(run.report)}
        print_json({**files, **run.metrics, "shown": shown_as_dicts(shown)})
        return
    print("\nOne test image of each class, never seen in training:\n")
    print_shown(shown)
    print(
        f"\n{run.split} {headline(run.evaluation)}; guessing gives "
        f"{1 / len(run.evaluation.labels):.0%}\n"
        f"report: {run.report.resolve()}  (open it in a browser)\n"
        f"model:  {run.bundle}\n\n"
        f"next:   vitlab predict {run.bundle} YOUR.jpg\n"
        "        vitlab train --data YOUR_FOLDER --out runs/mine --minutes 20"
    )
