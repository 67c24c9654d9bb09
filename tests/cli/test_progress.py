"""What a training says while it goes: whose accuracy, how fast, how far the first look is."""

import io
from typing import Literal

import pytest
from rich.console import Console

from vitlab.cli.progress import RunView
from vitlab.jobs.plan import Plan
from vitlab.training.config import TrainConfig
from vitlab.training.loggers import Metric

SIZE = {"image_size": (32, 32)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time that stands still until somebody moves it."""
    now = [1000.0]
    monkeypatch.setattr("vitlab.cli.progress.time.monotonic", lambda: now[0])
    return now


def plain() -> tuple[RunView, io.StringIO]:
    stream = io.StringIO()
    view = RunView(Console(file=stream), None)
    view._steps, view._batch = 40, 10
    return view, stream


def metric(step: int, split: str, name: str, value: float) -> Metric:
    return {"step": step, "epoch": 0.0, "split": split, "name": name, "value": value, "time": 0.0}


def test_the_speed_is_that_of_learning_alone(clock: list[float]) -> None:
    view, stream = plain()
    for step in range(1, 5):
        clock[0] += 2.0  # a step
        view.metric(metric(step, "train", "loss", 1.5))
        clock[0] += 100.0  # the held-out images
        for name, value in (("loss", 1.4), ("accuracy", 0.25)):
            view.metric(metric(step, "validation", name, value))
    assert stream.getvalue().splitlines()[-1] == (
        "step 4 of 40: loss 1.500, held-out accuracy 25.0%, 5 images/s"
    )


@pytest.mark.parametrize("balance", ["none", "loss", "sampling"])
def test_a_step_is_shown_once(balance: Literal["none", "loss", "sampling"]) -> None:
    stream = io.StringIO()
    view = RunView(Console(file=stream), None)
    train = TrainConfig(balance=balance)
    view.begin(Plan(recipe="r", data="d", train=train, model=SIZE, steps=2, command="c"))
    names = ["loss", "accuracy", *(["balanced"] if balance != "none" else []), "top5"]
    for step in (1, 2):
        view.metric(metric(step, "train", "loss", 1.5))
        for name in names:
            view.metric(metric(step, "validation", name, 0.25))
    more = ", held-out balanced accuracy 25.0%" if balance != "none" else ""
    lines = [line.split(", ", 1)[1] for line in stream.getvalue().splitlines()[1:]]
    assert len(lines) == 2
    assert all(f"held-out accuracy 25.0%{more}" in line for line in lines)


def test_a_slow_evaluation_does_not_repeat_the_step(clock: list[float]) -> None:
    view, stream = plain()
    for step in (1, 2):
        clock[0] += 20.0
        view.metric(metric(step, "train", "loss", 1.5))
        view.metric(metric(step, "train", "lr", 0.5))
        clock[0] += 20.0
        for name in ("loss", "accuracy"):
            view.metric(metric(step, "validation", name, 0.25))
    lines = stream.getvalue().splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "step 1 of 40",
        "held-out accuracy 25.0% after step 1",
        "step 2 of 40",
        "held-out accuracy 25.0% after step 2",
    ]


def test_small_images_are_less_of_the_work(clock: list[float]) -> None:
    stream = io.StringIO()
    view = RunView(Console(file=stream), None)
    train = TrainConfig(small_sizes=(16,), small_until=(0.5,), batch_size=10)
    view.begin(Plan(recipe="r", data="d", train=train, model=SIZE, steps=40, command="c"))
    clock[0] += 3.0
    view.metric(metric(0, "train", "loss", 1.5))
    clock[0] += 60.0
    view.metric(metric(10, "train", "loss", 1.5))
    # A minute for a quarter of the steps, at a quarter of the pixels: 0.133 of the work.
    assert stream.getvalue().splitlines()[-1].endswith(", 6.5 min left")


def test_the_first_look_is_told_now_and_then(clock: list[float]) -> None:
    view, stream = plain()
    for done in range(0, 1001, 100):
        view.files(done, 1000)
        clock[0] += 6.0
    assert stream.getvalue().splitlines() == [
        f"inspecting images: {done} of 1,000, {0.06 * (1000 - done) / 60:.1f} min left"
        for done in (200, 400, 600, 800)
    ]


def test_a_quick_look_is_not_worth_a_line(clock: list[float]) -> None:
    view, stream = plain()
    for done in (0, 256, 300):
        view.files(done, 300)
    assert stream.getvalue() == ""


def test_a_machine_that_becomes_slower_gets_a_new_estimate(clock: list[float]) -> None:
    stream = io.StringIO()
    view = RunView(Console(file=stream, width=200), None)
    train = TrainConfig(budget=4.0, budget_in="minutes", batch_size=10)
    view.begin(Plan(recipe="r", data="d", train=train, model=SIZE, steps=40, command="c"))
    for step in range(41):
        view.metric(metric(step, "train", "loss", 1.5))
        clock[0] += 6.0 if step < 10 else 12.0  # as planned, then half as fast
    slow = [line for line in stream.getvalue().splitlines() if line.startswith("the machine")]
    assert slow == [
        f"the machine is slower than before: the 40 steps take about {now} min, not {then}; "
        "all of them are made"
        for now, then in ((5.1, 4.0), (6.5, 5.1))
    ]


def test_a_run_of_one_step_has_no_estimate(clock: list[float]) -> None:
    stream = io.StringIO()
    view = RunView(Console(file=stream, width=200), None)
    train = TrainConfig(budget=0.1, budget_in="minutes", batch_size=10)
    view.begin(Plan(recipe="r", data="d", train=train, model=SIZE, steps=1, command="c"))
    for name in ("loss", "grad_norm", "lr"):
        view.metric(metric(1, "train", name, 1.5))
        clock[0] += 20.0
    view.metric(metric(1, "validation", "accuracy", 0.5))
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith(": 1 step of 10 images")
    assert not [line for line in rest if "slower" in line]


def test_stages_after_training_are_shown(clock: list[float]) -> None:
    view, stream = plain()
    for done in range(0, 1001, 250):
        view.stage("testing", done, 1000)
        clock[0] += 12.0
    for done in (0, 1):
        view.stage("exporting", done, 1)
    assert stream.getvalue().splitlines() == [
        "testing: 1,000 images",
        *(
            f"testing: {n} of 1,000, {0.048 * (1000 - n) / 60:.1f} min left"
            for n in (250, 500, 750)
        ),
        "exporting",
    ]
