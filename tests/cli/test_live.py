"""What a training says while it goes: whose accuracy, how fast, how far the first look is."""

import io

import pytest
from rich.console import Console

from vitlab.cli.live import LiveView
from vitlab.jobs.run_folder import Plan
from vitlab.training.config import TrainConfig
from vitlab.training.log import Metric

SIZE = {"image_size": (32, 32)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time that stands still until somebody moves it."""
    now = [1000.0]
    monkeypatch.setattr("vitlab.cli.live.time.monotonic", lambda: now[0])
    return now


def plain() -> tuple[LiveView, io.StringIO]:
    stream = io.StringIO()
    view = LiveView(Console(file=stream), None)
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


def test_small_images_are_less_of_the_work(clock: list[float]) -> None:
    stream = io.StringIO()
    view = LiveView(Console(file=stream), None)
    train = TrainConfig(small_sizes=(16,), small_until=(0.5,), batch_size=10)
    view.begin(Plan(recipe="r", data="d", train=train, model=SIZE, steps=40, command="c"))
    clock[0] += 3.0
    for step in (0, 10):
        view.metric(metric(step, "train", "loss", 1.5))
        clock[0] += 30.0
    view.metric(metric(10, "train", "lr", 0.5))
    # A minute for a quarter of the steps, at a quarter of the pixels: 0.133 of the work.
    assert stream.getvalue().splitlines()[-1].endswith(", 6.5 min left")


def test_the_first_look_is_told_now_and_then(clock: list[float]) -> None:
    view, stream = plain()
    for done in range(0, 1001, 100):
        view.files(done, 1000)
        clock[0] += 6.0
    assert stream.getvalue().splitlines() == [
        f"looking at the images: {done} of 1,000, {0.06 * (1000 - done) / 60:.1f} min left"
        for done in (200, 400, 600, 800)
    ]


def test_a_quick_look_is_not_worth_a_line(clock: list[float]) -> None:
    view, stream = plain()
    for done in (0, 256, 300):
        view.files(done, 300)
    assert stream.getvalue() == ""
