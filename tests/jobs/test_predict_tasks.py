"""Predictions of every task in every format: the same records, and which labels are in them."""

from pathlib import Path
from typing import Any

import pytest

from jobs.classifiers import LABELS, colours, saved_model
from jobs.prediction_rows import read
from vitlab import load
from vitlab.classify.predictor import shortest
from vitlab.errors import FileError, InputError
from vitlab.jobs.predict import predict
from vitlab.registry import OBJECTIVES

ENDINGS = ["csv", "jsonl", "parquet"]
COLUMNS = ["path", "label", "probability", "top", "error"]
COUNT = 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {task: saved_model(folder / f"{task}.safetensors", task=task) for task in OBJECTIVES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last of the images is none."""
    made = colours(tmp_path_factory.mktemp("images") / "photos", COUNT)
    (made / "99.png").write_bytes(b"no image")
    return made


def told(row: dict[str, Any]) -> list[str]:
    return [label for label, _ in row["top"]]


@pytest.mark.parametrize("task", OBJECTIVES)
def test_a_record_has_the_same_fields_in_every_format(
    models: dict[str, Path], folder: Path, tmp_path: Path, task: str
) -> None:
    expected = load(models[task]).predict(sorted(folder.iterdir()), batch_size=2)
    for ending in ENDINGS:
        output = tmp_path / f"out.{ending}"
        assert predict(models[task], [folder], output=output, batch_size=2).failed == 1
        rows = read(output)
        assert len(rows) == COUNT + 1
        for row, prediction in zip(rows, expected, strict=True):
            assert list(row) == COLUMNS + ["value"] * (task == "regression")
            assert (row["path"], row["label"]) == (prediction.path, prediction.label)
            assert row["error"] == prediction.error
            assert told(row) == [label for label, _ in prediction.top]
            found = [row["probability"], row.get("value"), *(number for _, number in row["top"])]
            assert [each if each is None else shortest(each) for each in found] == [
                prediction.probability,
                prediction.value,
                *(number for _, number in prediction.top),
            ]


def test_a_regression_tells_its_values_and_no_label(
    models: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.csv"
    predict(models["regression"], [folder], output=output)
    *rows, broken = read(output)
    assert len({row["value"] for row in rows}) == COUNT
    for row in rows:
        assert (row["label"], row["probability"], row["error"]) == (None, None, None)
        assert told(row) == list(LABELS)
        assert row["value"] == row["top"][0][1]
    assert (broken["value"], broken["top"]) == (None, [])
    assert broken["error"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_values_survive_a_kill_and_a_second_start(
    models: dict[str, Path], folder: Path, tmp_path: Path, ending: str
) -> None:
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"

    def stop(prediction: object) -> None:
        raise KeyboardInterrupt

    predict(models["regression"], [folder], output=whole, batch_size=2)
    with pytest.raises(KeyboardInterrupt):
        predict(models["regression"], [folder], output=cut, batch_size=2, each=stop)
    found = predict(models["regression"], [folder], output=cut, batch_size=2)
    assert (found.images, found.done_before) == (COUNT + 1, 2)
    assert cut.read_bytes() == whole.read_bytes()
    colours(folder, COUNT + 1)
    try:
        assert predict(models["regression"], [folder], output=cut).done_before == COUNT + 1
    finally:
        (folder / f"{COUNT:02}.png").unlink()
    assert read(cut)[: COUNT + 1] == read(whole)
    assert read(cut)[-1]["value"] is not None


@pytest.mark.parametrize("ending", ENDINGS)
def test_labels_are_present_from_the_threshold_on(
    models: dict[str, Path], folder: Path, tmp_path: Path, ending: str
) -> None:
    likely = load(models["multi-label"]).predict(sorted(folder.iterdir()), threshold=0.0)
    chances = sorted(chance for prediction in likely for _, chance in prediction.top)
    places = [len(chances) * part // 4 for part in (1, 3)]
    low, high = ((chances[place - 1] + chances[place]) / 2 for place in places)
    found: dict[float | None, list[dict[str, Any]]] = {}
    for threshold in (0.0, low, high, None, 0.5):
        output = tmp_path / f"{threshold}.{ending}"
        predict(models["multi-label"], [folder], output=output, threshold=threshold)
        found[threshold] = read(output)
    assert found[None] == found[0.5]
    for least in (low, 0.5, high):
        for row, everything in zip(found[least], found[0.0], strict=True):
            present = [score for score in everything["top"] if shortest(score[1]) >= least]
            assert row["top"] == present
            assert row["label"] == (present[0][0] if present else None)
    counts = [sum(len(row["top"]) for row in found[each]) for each in (0.0, low, high)]
    everywhere = COUNT * len(LABELS)
    assert counts == [everywhere, everywhere - everywhere // 4, everywhere - everywhere * 3 // 4]


def test_another_threshold_is_another_job(
    models: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.csv"
    predict(models["multi-label"], [folder], output=output, threshold=0.2)
    with pytest.raises(FileError, match=r"begun with another threshold \(0.2, now 0.5\)"):
        predict(models["multi-label"], [folder], output=output)
    found = predict(models["multi-label"], [folder], output=output, threshold=0.2)
    assert found.done_before == COUNT + 1


@pytest.mark.parametrize(
    ("task", "threshold", "message"),
    [
        ("single-label", 0.3, r"0.3 is for multi-label models; .* is a single-label one"),
        ("regression", 0.5, r"0.5 is for multi-label models; .* is a regression one"),
        ("multi-label", 1.5, r"threshold 1.5; valid: from 0 to 1"),
        ("multi-label", float("nan"), r"threshold nan; valid: from 0 to 1"),
    ],
)
def test_a_threshold_that_means_nothing_is_refused(
    models: dict[str, Path],
    folder: Path,
    tmp_path: Path,
    task: str,
    threshold: float,
    message: str,
) -> None:
    with pytest.raises(InputError, match=message):
        predict(models[task], [folder], output=tmp_path / "out.csv", threshold=threshold)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=message):
        load(models[task]).predict(folder / "00.png", threshold=threshold)
