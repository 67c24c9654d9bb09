"""Heads that a run starts with: what is known by name is kept, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.tiny import source
from jobs.classifiers import LABELS, saved_model
from vitlab.config import to_dict
from vitlab.jobs.start import Start, open_weights_for, reopen

OTHERS = ("one", "two", "three")


@pytest.mark.parametrize(
    ("data", "new_head", "kept"),
    [
        ({"labels": LABELS}, False, True),
        ({"labels": LABELS}, True, False),
        ({"labels": OTHERS}, False, False),
        ({"labels": OTHERS}, True, False),
        ({"labels": LABELS, "task": "multi-label"}, False, False),
        ({"labels": LABELS, "task": "regression"}, False, False),
    ],
)
def test_a_head_of_the_same_size(
    tmp_path: Path, data: dict[str, Any], new_head: bool, kept: bool
) -> None:
    _check(saved_model(tmp_path / "weights.safetensors"), data, new_head, kept)


@pytest.mark.parametrize(
    ("task", "labels", "new_head", "kept"),
    [
        ("multi-label", LABELS, False, True),
        ("multi-label", LABELS, True, False),
        ("multi-label", OTHERS, False, False),
        ("regression", LABELS, False, False),  # what is learnt is standardised
    ],
)
def test_a_head_of_the_same_task(
    tmp_path: Path, task: str, labels: tuple[str, ...], new_head: bool, kept: bool
) -> None:
    weights = saved_model(tmp_path / "weights.safetensors", task=task)
    _check(weights, {"labels": labels, "task": task}, new_head, kept)


def _check(weights: Path, data: dict[str, Any], new_head: bool, kept: bool) -> None:
    found = replace(source(), **data)
    model = open_weights_for(str(weights), found, image_size=None, new_head=new_head, changes={})
    start = Start(
        weights=str(weights), preprocessing=model.source.require_preprocessing(), new_head=new_head
    )
    for opened in (model, reopen(start, to_dict(model.config), found)):
        assert opened.head is not None
        assert bool(opened.head.weight.abs().max() > 0) == kept
        assert len(opened.head.weight) == 3
        assert torch.isfinite(opened.head.bias).all()
