"""A fourth kind of label, registered from outside: counts, learnt with the Poisson likelihood."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from vitlab.cli.main import run as run_command
from vitlab.data.datasets import DataSource
from vitlab.data.images import ArraySet
from vitlab.errors import ConfigError, UnknownName
from vitlab.evaluation.classification import Batches, Outcome, collect
from vitlab.evaluation.metrics import bootstrap_interval
from vitlab.jobs.evaluate import report_of
from vitlab.objectives.objective import Objective, objective_of
from vitlab.registry import DATASETS, OBJECTIVES
from vitlab.report.html import Html, element
from vitlab.report.run import Report, View, render
from vitlab.report.run.content import Section
from vitlab.report.run.images import wrong_values_in
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Goal
from vitlab.training.objective import Learning

STEPS = 6


@dataclass(frozen=True, kw_only=True)
class CountMetrics:
    """Errors of predicted counts."""

    task: ClassVar[str] = "counts"
    images: int
    labels: tuple[str, ...]
    error: float
    interval: tuple[float, float]
    table: None = None

    @property
    def figures(self) -> dict[str, float]:
        return {"error": self.error}

    @property
    def headline(self) -> str:
        return f"off by {self.error:.3f} on average"

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [("mean error of counts", f"{self.error:.3f}")]

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task, "images": self.images, "error": self.error}


def poisson(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return F.poisson_nll_loss(outputs.float(), targets)


def errors(outcome: Outcome) -> Tensor:
    return (outcome.logits.exp() - outcome.labels).abs().double().mean(dim=1)


def evaluate_counts(outcome: Outcome, labels: Sequence[str]) -> CountMetrics:
    found = errors(outcome).numpy()
    interval = bootstrap_interval(lambda rows: float(found[rows].mean()), len(found))
    return CountMetrics(
        images=len(outcome), labels=tuple(labels), error=float(found.mean()), interval=interval
    )


def watch(batches: Callable[[], Batches], model: nn.Module) -> Iterator[tuple[str, float]]:
    yield "precision", 1 / (1 + float(errors(collect(model, batches())).mean()))


def learn_counts(
    labels: Tensor, held_out: Tensor | None, outputs: int, config: TrainConfig
) -> Learning:
    goal = Goal(loss=poisson, chosen_by="precision")
    return Learning(goal=goal, evaluator=lambda batches: partial(watch, batches))


def sections(report: Report) -> Iterator[Section]:
    yield "Counts of the fourth kind", (element("p", f"{len(report.mistakes)} mistakes"),)


def figure(found: CountMetrics, split: str) -> Html:
    return element("div", f"{found.headline} ({split})", class_="figure")


COUNTS = Objective(
    name="counts",
    description="how many there are in each image",
    outputs="counts",
    label_type="float32",
    prediction="values",
    activate=lambda logits: logits.exp(),
    learn=learn_counts,
    evaluate=evaluate_counts,
    view=View(
        headline=figure,
        tiles=lambda found: iter(found.lines),
        findings=lambda found: iter(["Counts were predicted."]),
        sections=sections,
        mistakes=wrong_values_in,
    ),
)


def squares(images: int, seed: int) -> ArraySet:
    """Dark images with 0 to 4 bright squares, which are counted."""
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(5, (images,), generator=draw)
    pixels = torch.randint(40, (images, 3, 32, 32), generator=draw).to(torch.uint8)
    for image, count in zip(pixels, counts.tolist(), strict=True):
        for place in torch.randperm(16, generator=draw)[:count].tolist():
            row, column = 8 * (place // 4), 8 * (place % 4)
            image[:, row : row + 6, column : column + 6] = 230
    return ArraySet(images=pixels, labels=counts[:, None].float())


def open_squares() -> DataSource:
    return DataSource(
        name="squares",
        labels=("squares",),
        channels=3,
        image_size=(32, 32),
        open_train=lambda: squares(96, 0),
        open_test=lambda: squares(31, 1),
        mean=(0.2,) * 3,
        std=(0.2,) * 3,
        task="counts",
    )


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind and its data, for one test."""
    monkeypatch.setattr(OBJECTIVES, "_entries", dict(OBJECTIVES._entries))
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    vitlab.register("objective", "counts", COUNTS)
    vitlab.register("dataset", "squares", open_squares)


def trained(folder: Path) -> Any:
    changes = {"model": "vit_test", "batch_size": 16, "budget": STEPS, "budget_in": "steps"}
    return vitlab.train(data="squares", out=folder, changes=changes | {"evaluations": 1})


def test_it_is_trained_evaluated_predicted_and_reported(registered: None, tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    assert isinstance(run.evaluation, CountMetrics)
    config = json.loads((run.bundle / "config.json").read_text())
    assert (config["task"], config["labels"]) == ("counts", ["squares"])
    assert run.metrics["test_error"] == config["metrics"]["test_error"] == run.evaluation.error
    assert "validation_precision" in run.metrics
    page = run.report.read_text()
    assert "Counts of the fourth kind" in page
    assert f"{run.evaluation.headline} (test)" in page
    assert "counts" in page

    found = vitlab.evaluate(run.folder, "squares")
    assert found.evaluation == run.evaluation
    assert "Counts of the fourth kind" in render(report_of(found))

    test = squares(31, 1)
    pictures = [image.permute(1, 2, 0).numpy() for image in test.images[:5]]
    (first, *rest) = vitlab.load(run.bundle).predict(pictures)
    assert first.value is not None
    assert first.top == (("squares", first.value),)
    predicted = torch.tensor([one.value for one in (first, *rest)])
    logits = found.outcome.logits[:5, 0]
    torch.testing.assert_close(predicted, logits.exp(), rtol=1e-4, atol=1e-5)


def test_the_command_line_knows_it(
    registered: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run")
    assert run_command(["evaluate", str(tmp_path / "run"), "--data", "squares"]) == 0
    assert "mean error of counts" in capsys.readouterr().out


def test_exported_models_use_the_same_activation() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).numpy()
    torch.testing.assert_close(
        torch.from_numpy(COUNTS.probabilities(logits)), torch.from_numpy(logits).exp()
    )


def test_built_in_kinds_stay() -> None:
    with pytest.raises(ConfigError, match="objective 'regression' is built in"):
        vitlab.register("objective", "regression", COUNTS)
    with pytest.raises(UnknownName, match=r"unknown objective 'counts'.*single-label"):
        objective_of("counts")
