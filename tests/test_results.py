"""The scripts that tell and draw what came of runs."""

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from command import ROOT, script
from vitlab.evaluation.metrics import wilson
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.run_result import RunResult
from vitlab.jobs.train import train
from vitlab.models.cost import cost

SMALL: dict[str, Any] = {
    "model": "vit_test",
    "batch_size": 16,
    "budget": 2.0,
    "budget_in": "steps",
    "evaluations": 1,
    "seed": 5,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return train(data="sample", out=tmp_path_factory.mktemp("runs") / "run", changes=SMALL)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert script("result-of").main([str(argument) for argument in arguments]) == 0
    line, rest = capsys.readouterr().out.split("\n", 1)
    assert rest == ""
    return dict(json.loads(line))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert script("result-of").main([str(argument) for argument in arguments]) == 2
    written = capsys.readouterr()
    assert (written.out, written.err.count("\n")) == ("", 1)
    return written.err


def test_a_run_is_one_line(
    run: RunResult, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = told(capsys, run.folder)
    assert (found["recipe"], found["model"], found["data"]) == ("default", "vit_test", "sample")
    assert (found["seed"], found["steps"], found["batch_size"]) == (5, 2, 16)
    assert found["images_seen"] == 32
    assert found["pflops"] == run.compute.flops / 1e15
    assert found["minutes"] == run.compute.seconds / 60
    assert found["test_accuracy"] == run.evaluation.accuracy
    right = round(1000 * found["test_accuracy"])
    assert tuple(found["test_interval"]) == wilson(right, 1000) == run.evaluation.interval
    assert found["held_out_accuracy"] == run.metrics["validation_accuracy"]
    assert found["flip_accuracy"] is None
    price = cost("vit_test")
    assert (found["parameters"], found["flops_per_image"]) == (price.parameters, price.flops)
    # The stem's and the head's products are all that lies outside of the encoder.
    outside = 2 * (16 * 3 * 8 * 8 * 32 + 32 * 10)
    assert found["encoder_share"] == pytest.approx(1 - outside / price.flops, rel=1e-12)
    judged = evaluate(run.folder, "sample", flip=True)
    assert judged.flipped is not None
    facts = {"split": "test", **judged.evaluation.to_dict(), "flip": judged.flipped.to_dict()}
    (tmp_path / "e.json").write_text(json.dumps(facts))
    again = told(capsys, run.folder, tmp_path / "e.json")
    assert again.pop("flip_accuracy") == judged.flipped.figures["accuracy"]
    assert again == {key: value for key, value in found.items() if key != "flip_accuracy"}


def test_what_is_no_result_is_one_line(
    run: RunResult, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "no run to resume" in refused(capsys, tmp_path)
    (tmp_path / "config.json").write_bytes((run.folder / "config.json").read_bytes())
    assert "valid: a run that has ended" in refused(capsys, tmp_path)
    other = tmp_path / "e.json"
    other.write_text(json.dumps({"split": "test", "images": 1000, "accuracy": 0.99, "flip": None}))
    assert "is about accuracy 0.9900 on 1000 test images" in refused(capsys, run.folder, other)
    other.write_text("[]")
    assert "not an evaluation" in refused(capsys, run.folder, other)
    assert "usage" in refused(capsys)


def lines(recipe: str, pflops: float, accuracies: list[float]) -> list[str]:
    return [
        json.dumps(
            {"recipe": recipe, "pflops": pflops * (1 + i / 100), "test_accuracy": value}
            | ({"flip_accuracy": value + 0.01} if recipe == "one" else {})
        )
        for i, value in enumerate(accuracies)
    ]


def test_the_picture_has_every_label_apart_from_all_others(tmp_path: Path) -> None:
    tool = script("plot-record")
    made = [*lines("one", 0.3, [0.9, 0.92]), *lines("alone", 1.3, [0.9312])]
    published = tool.read_published(ROOT / "docs" / "results" / "published.csv")
    figure = tool.draw(tool.by_recipe([json.loads(line) for line in made]), published)
    (axes,) = figure.axes
    agg = importlib.import_module("matplotlib.backends.backend_agg")
    renderer = agg.FigureCanvasAgg(figure).get_renderer()
    texts = {text.get_text(): text.get_window_extent(renderer) for text in axes.texts}
    views = {row["name"] + (f" ({row['views']} views)" * bool(row["views"])) for row in published}
    assert "airbench94_muon (6 views)" in views
    assert set(texts) == views | {
        "one: 91.00 % (± 1.41, 2 seeds)\nwith mirror images 92.00 %, 2 seeds",
        "alone: 93.12 % (one seed)",
    }
    boxes = [*texts.values(), axes.get_legend().get_window_extent(renderer)]
    for number, box in enumerate(boxes):
        assert not [other for other in boxes[number + 1 :] if box.overlaps(other)]
    places = [(float(row["pflops"]), float(row["accuracy"])) for row in published]
    for place in [*places, (0.3015, 91.0), (1.3, 93.12)]:
        x, y = axes.transData.transform(place)
        assert not [name for name, box in texts.items() if box.contains(x, y)]


def test_the_picture_is_written_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, target = tmp_path / "record.jsonl", tmp_path / "record.png"
    tool = script("plot-record")
    record.write_text("\n".join(lines("one", 0.3, [0.9])))
    assert tool.main([str(record), str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "record.svg").read_text()[:600]
    for content in ("", "{}", "no"):
        record.write_text(content)
        assert tool.main([str(record), str(tmp_path / "other.png")]) == 2
    assert not (tmp_path / "other.png").exists()
    assert tool.main([str(record)]) == 2
    assert "usage" in capsys.readouterr().err


def test_published_results_are_complete() -> None:
    with (ROOT / "docs" / "results" / "published.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["name"] for row in rows}) == len(rows) > 20
    for row in rows:
        assert row["family"] in ("transformer", "cnn")
        assert row["pflops_from"] in ("stated", "derived")
        assert "/" in row["source"]
        assert ("test-time augmentation" in row["note"]) == bool(row["views"])
        assert 85 < float(row["accuracy"]) < 100
        assert float(row["pflops"]) > 0
