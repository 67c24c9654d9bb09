"""`report.html`: all of it inside one file, every text escaped, every number where it belongs."""

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.datasets import DataSource
from vitlab.data.images import ArraySet, FileSet
from vitlab.evaluation.calibration import Temperature
from vitlab.evaluation.classification import Evaluation, Outcome, evaluate
from vitlab.report.html import Html, element, join
from vitlab.report.numbers import duration, percent, short, write_number, write_percent
from vitlab.report.run import (
    Compute,
    Data,
    Mistake,
    Point,
    Report,
    describe_data,
    describe_model,
    render,
    write_report,
)
from vitlab.report.run.confusion import top_confusions
from vitlab.report.run.content import augmentations
from vitlab.report.run.curves import CHARTS, _value_axis, curves_of
from vitlab.report.run.images import mistakes_in
from vitlab.report.run.page import flatten, read_metrics
from vitlab.report.svg import nice_ticks, ticks_within

NASTY = "<script>alert(\"&')</script>"
LABELS = ("cat", "dog", NASTY)
VOID = {"br", "img", "meta"}


class Page(HTMLParser):
    """A page taken apart: its elements, attributes and text; what is left open is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += f"{data}\n"

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def outcome(labels: int, images: int = 60) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(images) % labels
    logits = 2 * torch.randn(images, labels, generator=generator)
    logits[torch.arange(images), truth] += 2
    return Outcome(logits=logits, labels=truth, index=torch.arange(images))


def evaluation(labels: tuple[str, ...] = LABELS) -> Evaluation:
    return evaluate(outcome(len(labels)), labels, temperature=Temperature(value=1.25, images=777))


def metrics() -> tuple[Point, ...]:
    points = []
    for step in range(1, 201):
        for name, value in (("loss", 2 - step / 200), ("lr", 1e-3), ("grad_norm", 0.5)):
            points.append(Point(step=step, epoch=step / 20, split="train", name=name, value=value))
        if step % 20 == 0:
            for name, value in (("loss", 2.5 - step / 200), ("accuracy", step / 250)):
                points.append(
                    Point(step=step, epoch=step / 20, split="validation", name=name, value=value)
                )
    return tuple(points)


def full_report() -> Report:
    found = outcome(len(LABELS))
    images = torch.randint(256, (60, 3, 8, 8), dtype=torch.uint8)
    return Report(
        title=f"A run {NASTY}",
        evaluation=evaluation(),
        mistakes=mistakes_in(found, ArraySet(images=images, labels=found.labels), LABELS, 5),
        model=describe_model("vit_test", vitlab.create_model("vit_test"), {"kept": "EMA"}),
        data=Data(
            name=f"data {NASTY}",
            classes=3,
            images={"train": 1234, "test": 60},
            size="8 × 8 × 3",
            augmentation=("flip random",),
        ),
        compute=Compute(flops=1.5e15, seconds=3725, images=40000, steps=200, device="cpu"),
        broken={f"a/{NASTY}.jpg": f"not an image {NASTY}"},
        command=f"vitlab train --data x --set note='{NASTY}'",
        notes=("The averaged weights were kept.",),
        made_at="today",
        metrics=metrics(),
        config={"model": "vit_test", "optimizer": {"lr": 0.001, "note": NASTY}},
    )


@pytest.fixture(scope="module")
def html() -> str:
    return render(full_report())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_everything_is_inside_the_file(html: str, page: Page) -> None:
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for _, attributes in page.elements:
        assert not {"href", "srcset", "action", "poster", "background"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
    assert "url(" not in html
    assert "@import" not in html
    assert "http://" not in html
    assert "https://" not in html


def test_text_is_escaped(html: str, page: Page) -> None:
    assert "<script" not in html
    title = html[html.index("<title>") : html.index("</title>")]
    assert "&lt;script&gt;" in title
    shown = page.text.count(NASTY)
    assert shown >= 8  # title, data, broken, command, config, classes, confusions, mistakes


def test_the_headline_has_accuracy_and_interval(page: Page) -> None:
    found = evaluation()
    low, high = found.interval
    assert f"{found.accuracy:.1%}\n" in page.text
    assert "of 60 test images right" in page.text
    assert f"95% interval {low:.1%} to {high:.1%}" in page.text
    assert "1 h 2 min" in page.text
    assert "1.5 P" in page.text


def test_curves_are_drawn_for_both_splits(html: str, page: Page) -> None:
    for title in ("Loss", "Accuracy", "Learning rate", "Gradient norm"):
        assert f"<h3>{title}</h3>" in html
    assert "best 80.0%" in page.text
    assert "best 1.500" in page.text
    groups = [attributes.get("class") for attributes in page.all("g")]
    assert groups.count("train") == 3
    assert groups.count("validation") >= 2


def test_the_confusion_matrix_shows_every_count(page: Page) -> None:
    found = evaluation().confusion
    counts = re.findall(r"taken for .*?: (\d+)\n", page.text)
    assert [int(count) for count in counts] == found.flatten().tolist()


def test_classes_calibration_facts_and_settings_are_there(page: Page) -> None:
    found = evaluation()
    assert found.scaled is not None
    for item in found.classes:
        assert percent(item.precision) in page.text
        assert percent(item.recall) in page.text
    assert percent(found.reliability.ece, 2) in page.text
    assert percent(found.scaled.reliability.ece, 2) in page.text
    assert "1.250, fitted on 777 held-out images" in page.text
    for text in (
        "vit_test",
        "1,234",
        "flip random",
        "optimizer.lr",
        "0.001",
        "EMA",
        "not an image",
    ):
        assert text in page.text
    assert "vitlab train --data x" in page.text
    assert "The averaged weights were kept." in page.text


def test_mistakes_are_pictures_the_surest_first(page: Page) -> None:
    mistakes = full_report().mistakes
    assert len(mistakes) == len(page.all("img")) == 5
    sureness = [m.probability or 0.0 for m in mistakes]
    assert sureness == sorted(sureness, reverse=True)
    for attributes, mistake in zip(page.all("img"), mistakes, strict=True):
        data = base64.b64decode(attributes["src"].split(",")[1])
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (8, 8)
        assert attributes["alt"] == f"{mistake.truth}, taken for {mistake.predicted}"
        assert percent(mistake.probability) in page.text


def test_mistakes_of_files(tmp_path: Path) -> None:
    Image.fromarray(np.full((300, 600, 3), 200, np.uint8)).save(tmp_path / "wide.png")
    found = Outcome(
        logits=torch.tensor([[3.0, 0.0]]), labels=torch.tensor([1]), index=torch.tensor([0])
    )
    data = FileSet(paths=(tmp_path / "wide.png",), labels=torch.tensor([1]))
    (mistake,) = mistakes_in(found, data, ("a", "b"))
    assert mistake.image.shape == (72, 144, 3)
    assert (mistake.truth, mistake.predicted) == ("b", "a")
    assert mistake.probability + mistake.truth_probability == pytest.approx(1)
    assert mistake.name.endswith("wide.png")


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_pictures_of_any_number_of_channels(channels: int) -> None:
    mistake = Mistake(
        image=np.zeros((7, 5, channels), np.uint8),
        name="0",
        truth="a",
        predicted="b",
        probability=0.9,
        truth_probability=0.05,
    )
    report = Report(title="t", evaluation=evaluation(), mistakes=(mistake,))
    (image,) = Page(render(report)).all("img")
    with Image.open(io.BytesIO(base64.b64decode(image["src"].split(",")[1]))) as read:
        assert read.size == (5, 7)


def test_nothing_but_a_title_is_still_a_page() -> None:
    page = Page(render(Report(title="empty")))
    assert "empty" in page.text
    assert not page.all("svg")


def test_many_classes_are_listed_instead_of_drawn() -> None:
    labels = tuple(f"class {i}" for i in range(37))
    html = render(Report(title="many", evaluation=evaluation(labels)))
    assert "Confusion matrix" not in html
    assert "Most frequent confusions" in html
    assert "The 20 weakest of 37 classes" in html


def test_classes_without_images_take_no_room() -> None:
    logits = torch.zeros(4, 50)
    logits[torch.arange(4), torch.tensor([3, 3, 7, 20])] = 5.0
    truth = torch.tensor([3, 3, 7, 7])
    found = evaluate(
        Outcome(logits=logits, labels=truth, index=torch.arange(4)), [f"c{i}" for i in range(50)]
    )
    text = Page(render(Report(title="few", evaluation=found))).text
    assert "c7 taken for other: 1" in text
    assert "c4 taken for" not in text


def test_no_mistakes_and_one_class() -> None:
    logits = torch.tensor([[9.0, 0.0]] * 3)
    found = evaluate(
        Outcome(logits=logits, labels=torch.zeros(3).long(), index=torch.arange(3)), ("a", "b")
    )
    text = Page(render(Report(title="perfect", evaluation=found))).text
    assert "100.0%" in text
    assert "Most frequent confusion" not in text


def test_every_image_readable_or_not_looked_at() -> None:
    assert "Every image could be read." in render(Report(title="t", broken={}))
    assert "could not be read" not in render(Report(title="t"))
    many = {f"{i}.jpg": "damaged" for i in range(30)}
    text = Page(render(Report(title="t", broken=many))).text
    assert "30 images could not be read" in text
    assert "29.jpg" in text


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    lines = [
        {"step": s, "epoch": s / 2, "split": "train", "name": "loss", "value": 1 / s, "time": 0.0}
        for s in range(1, 4)
    ]
    written = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(written + '{"step": 4, "epo')
    (tmp_path / "config.json").write_text('{"seed": 12345}')
    path = write_report(tmp_path, Report(title="run"))
    assert path == tmp_path / "report.html"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "report.html",
    ]
    html = path.read_text()
    assert "<h3>Loss</h3>" in html
    assert "12345" in Page(html).text
    assert [point.value for point in read_metrics(tmp_path / "metrics.jsonl")] == [1, 1 / 2, 1 / 3]


def test_a_run_that_logged_nothing(tmp_path: Path) -> None:
    assert "<h1>run</h1>" in write_report(tmp_path, Report(title="run")).read_text()


def test_many_points_become_means_with_a_range() -> None:
    points = [
        Point(step=i, epoch=0, split="train", name="loss", value=float(i % 2)) for i in range(600)
    ]
    (curve,) = curves_of(points, "loss")
    assert len(curve.values) == 60
    assert set(curve.values) == {0.5}
    assert (set(curve.lows), set(curve.highs)) == ({0.0}, {1.0})
    assert curve.noisy


def test_what_is_not_finite_is_not_drawn_and_the_later_value_counts() -> None:
    values = [(1, 1.0), (2, float("nan")), (3, 3.0), (1, 5.0)]
    points = [Point(step=s, epoch=0, split="train", name="loss", value=v) for s, v in values]
    (curve,) = curves_of(points, "loss")
    assert (curve.steps, curve.values) == ((1, 3), (5.0, 3.0))
    assert "nan" not in render(Report(title="t", metrics=tuple(points))).lower().split("<body>")[1]


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.97, 0.995), (0.0, 0.0), (0.5, 0.5), (0.0, 1.0)])
def test_axes_of_shares_stay_within_0_and_100_percent(values: tuple[float, float]) -> None:
    points = [
        Point(step=s, epoch=0, split="validation", name="accuracy", value=v)
        for s, v in enumerate(values)
    ]
    chart = next(chart for chart in CHARTS if chart.name == "accuracy")
    axis = _value_axis(chart, curves_of(points, "accuracy"))
    assert 0 <= axis.low <= min(values)
    assert max(values) <= axis.high <= 1
    assert axis.low < axis.high
    assert (axis.ticks[0], axis.ticks[-1]) == (axis.low, axis.high)


def test_a_constant_curve_can_be_drawn() -> None:
    points = tuple(
        Point(step=s, epoch=0, split="validation", name="accuracy", value=0.5) for s in (1, 2)
    )
    assert "best 50.0%" in render(Report(title="t", metrics=points))


def test_top_confusions_by_hand() -> None:
    found = replace(
        evaluate(outcome(3), ("a", "b", "c")),
        confusion=torch.tensor([[9, 1, 0], [4, 5, 2], [0, 3, 6]]),
    )
    pairs = [(item.truth, item.predicted, item.count) for item in top_confusions(found, 3)]
    assert pairs == [("b", "a", 4), ("c", "b", 3), ("b", "c", 2)]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.31, 0.83, [0.2, 0.4, 0.6, 0.8, 1]),
        (0, 1e-3, [0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
        (3, 3, [3, 4, 5, 6]),
    ],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, ticks: list[float]) -> None:
    found = nice_ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    if low != high:
        assert found == ticks
    assert all(low <= tick <= high for tick in ticks_within(low, high))


def test_numbers_are_written_for_people() -> None:
    assert [short(x) for x in (0, 7, 999.6, 86_567_656, 3.2e18)] == [
        "0",
        "7",
        "1 k",
        "86.6 M",
        "3.2 E",
    ]
    assert [duration(x) for x in (0.25, 12, 59.7, 61, 3600, 7325)] == [
        "0.2 s",
        "12 s",
        "1 min",
        "1 min 1 s",
        "1 h",
        "2 h 2 min",
    ]
    assert (percent(None), percent(0.12345, 2)) == ("–", "12.35%")
    assert (write_number(25000), write_number(0.0002), write_percent(0.25)) == (
        "25,000",
        "0.0002",
        "25%",
    )


def test_markup_escapes_text_and_attributes_but_not_markup() -> None:
    made = element("p", "a<b", Html("<br>"), None, title='"&"', class_="x", stroke_width=1.0)
    assert made == '<p title="&quot;&amp;&quot;" class="x" stroke-width="1">a&lt;b<br></p>'
    assert join(["<", element("br")]) == "&lt;<br>"


def test_settings_are_flattened() -> None:
    config = {"a": 1, "b": {"c": [1, 2], "d": {}}, "e": None}
    assert flatten(config) == [("a", 1), ("b.c", [1, 2]), ("b.d", {}), ("e", None)]


def test_descriptions_are_read_off_the_objects() -> None:
    model = describe_model("mine", vitlab.create_model("vit_test"))
    assert model.parameters == sum(p.numel() for p in vitlab.create_model("vit_test").parameters())
    assert model.details["input"] == "32 × 32 × 3"
    assert augmentations(AugmentConfig()) == ()
    config = AugmentConfig(flip="random", random_resized_crop=(0.25, 1.0))
    assert augmentations(config) == ("random resized crop 0.25 to 1", "flip random")

    def nothing() -> ArraySet:
        raise AssertionError("describing opens no data")

    source = DataSource(
        name="mine",
        labels=("a", "b"),
        channels=1,
        image_size=(28, 24),
        open_train=nothing,
        open_test=nothing,
        mean=(0.5,),
        std=(0.5,),
    )
    data = describe_data(source, {"train": 5}, augment=config)
    assert (data.size, data.classes, data.images) == ("24 × 28 × 1", 2, {"train": 5})
