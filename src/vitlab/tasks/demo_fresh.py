"""The demo of a package without a model inside: train on the sample, then ask about new images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitlab.tasks.demo import DATA
from vitlab.tasks.job import Watcher
from vitlab.tasks.job_result import Run
from vitlab.tasks.train import train

RECIPE = "demo"


def train_fresh(out: Path, *, changes: Mapping[str, Any], watcher: Watcher | None = None) -> Run:
    """A small ViT, trained on the sample from scratch."""
    return train(RECIPE, data=DATA, out=out, changes=changes, watcher=watcher)
