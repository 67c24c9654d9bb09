"""Files of predictions: complete, resumable, and the same however often the process was killed."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.classifiers import colours, saved_model
from jobs.prediction_rows import read
from vitlab import load
from vitlab.classify.predictor import Prediction
from vitlab.errors import FileError, MissingExtra
from vitlab.jobs.predict import predict
from vitlab.jobs.prediction_files import parquet_records, write_parquet
from vitlab.jobs.prediction_records import Csv, Format, JsonLines, whole_records

ROOT = Path(__file__).resolve().parents[2]
COUNT, BATCH = 23, 3
FORMATS = ["csv", "jsonl", "parquet"]
ODD = Prediction(
    path='a "b",\nc/\udcff.png', label="tench, Tinca", probability=0.1, top=(("tench, Tinca", 0.1),)
)
"""All that a line of text can stumble over."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images at two depths, two of which are broken."""
    made = colours(tmp_path_factory.mktemp("images") / "photos", COUNT - 2)
    (made / "deeper").mkdir()
    (made / "20.png").rename(made / "deeper" / "20.png")
    (made / "05b.png").write_bytes(b"no image")
    (made / "deeper" / "last.jpg").write_bytes(b"")
    return made


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """So that batches are computed side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run(weights: Path, folder: Path, output: Path, **options: Any) -> Any:
    return predict(weights, [folder], output=output, **{"batch_size": BATCH, **options})


@pytest.mark.parametrize("ending", FORMATS)
def test_every_image_has_a_record(weights: Path, folder: Path, tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"out.{ending}"
    told: list[Prediction] = []
    found = run(weights, folder, output, top=2, each=told.append)
    assert (found.images, found.failed, found.done_before) == (COUNT, 2, 0)
    rows = read(output)
    paths = [*sorted(folder.glob("*.png")), *sorted((folder / "deeper").iterdir())]
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert [row["path"] for row in rows if row["error"]] == [
        str(folder / "05b.png"),
        str(folder / "deeper" / "last.jpg"),
    ]
    # Records say the same as the library does, to the digits of float32.
    expected = load(weights).predict(paths, top=2, batch_size=BATCH)
    assert told == expected
    for row, prediction in zip(rows, expected, strict=True):
        assert (row["label"], row["error"]) == (prediction.label, prediction.error)
        values = [row["probability"], *(value for _, value in row["top"])]
        expected_values = [prediction.probability, *(value for _, value in prediction.top)]
        if prediction.error is None:
            assert values == pytest.approx(expected_values, rel=1e-7)
        assert [label for label, _ in row["top"]] == [label for label, _ in prediction.top]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"out.{ending}",
        f"out.{ending}.job.json",
    ]


STUCK = """
import sys, time
from pathlib import Path
from vitlab.jobs.predict import predict
weights, folder, output, batch = sys.argv[1:]
seen = []
def stop(prediction):
    seen.append(prediction)
    if len(seen) == 8:
        time.sleep(600)
predict(weights, [folder], output=Path(output), batch_size=int(batch), each=stop)
"""
"""Stops in the middle of the third batch, and waits to be killed."""


def killed(weights: Path, folder: Path, output: Path, growing: Path) -> subprocess.Popen[bytes]:
    """Begin the job in a process, and kill it when three batches are written."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, *map(str, (weights, folder, output, BATCH))],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2"},
    )
    lines = 0
    while process.poll() is None and lines < 3 * BATCH:
        time.sleep(0.01)
        lines = growing.read_bytes().count(b"\n") if growing.exists() else 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    return process


@pytest.mark.parametrize(
    ("name", "growing"),
    [("out.csv", "out.csv"), ("out.parquet", "out.parquet.part.jsonl")],
)
def test_killed_and_started_again_it_finishes_the_same_file(
    weights: Path, folder: Path, tmp_path: Path, name: str, growing: str
) -> None:
    process = killed(weights, folder, tmp_path / name, tmp_path / growing)
    assert process.returncode == -signal.SIGKILL
    found = run(weights, folder, tmp_path / name)
    assert (found.images, found.done_before) == (COUNT, 3 * BATCH)
    (tmp_path / "whole").mkdir()
    run(weights, folder, tmp_path / "whole" / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    job = json.loads((tmp_path / f"{name}.job.json").read_text())
    assert job["finished"] == COUNT


@pytest.mark.parametrize("ending", FORMATS)
def test_cut_anywhere_it_finishes_the_same_file(
    weights: Path, folder: Path, tmp_path: Path, ending: str
) -> None:
    whole, lines = tmp_path / f"whole.{ending}", tmp_path / "lines.jsonl"
    run(weights, folder, whole)
    if ending == "parquet":
        run(weights, folder, lines)
    content = (lines if ending == "parquet" else whole).read_bytes()
    format: Format = Csv() if ending == "csv" else JsonLines()
    job = json.loads(whole.with_name(f"{whole.name}.job.json").read_text())
    cut = tmp_path / f"cut.{ending}"
    data = cut.with_name(f"{cut.name}.part.jsonl") if ending == "parquet" else cut
    for length in (3, len(content) // 2, len(content) - 1):
        cut.unlink(missing_ok=True)
        data.write_bytes(content[:length])
        cut.with_name(f"{cut.name}.job.json").write_text(json.dumps(job | {"finished": 0}))
        done = run(weights, folder, cut).done_before
        assert cut.read_bytes() == whole.read_bytes(), length
        # Only whole batches are trusted; whether the last, shorter one is whole is not known.
        records = list(whole_records(io.BytesIO(content[:length]), format))
        assert done == len(records) // BATCH * BATCH


@pytest.mark.parametrize("ending", FORMATS)
def test_nothing_is_done_twice(weights: Path, folder: Path, tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"out.{ending}"
    run(weights, folder, output)
    content = output.read_bytes()
    told: list[Prediction] = []
    found = run(weights, folder, output, each=told.append)
    assert (told, found.done_before, found.failed) == ([], COUNT, 2)
    assert output.read_bytes() == content


@pytest.mark.parametrize("ending", FORMATS)
def test_images_that_came_later_are_added(weights: Path, tmp_path: Path, ending: str) -> None:
    folder, output = colours(tmp_path / "photos", 5), tmp_path / f"out.{ending}"
    run(weights, folder, output)
    before = read(output)
    colours(folder, 7)
    told: list[Prediction] = []
    found = run(weights, folder, output, each=told.append)
    assert (found.images, found.done_before) == (7, 5)
    assert [prediction.path for prediction in told] == [
        str(folder / "05.png"),
        str(folder / "06.png"),
    ]
    assert read(output)[:5] == before
    assert len(read(output)) == 7
    content = output.read_bytes()
    assert run(weights, folder, output).done_before == 7
    assert output.read_bytes() == content


def test_an_image_named_twice_is_there_twice(weights: Path, folder: Path, tmp_path: Path) -> None:
    images = [folder / "00.png", folder / "01.png", folder / "00.png"]
    output = tmp_path / "out.jsonl"
    for done in (0, 3):
        found = predict(weights, images, output=output)
        assert (found.images, found.done_before) == (3, done)
        assert [row["path"] for row in read(output)] == [str(path) for path in images]


def test_another_job_is_refused_and_nothing_lost(
    weights: Path, folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.csv"
    run(weights, folder, output)
    content = output.read_bytes()
    other = saved_model(tmp_path / "other.safetensors", seed=1)
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    changes: list[tuple[str, Path, Path, dict[str, Any]]] = [
        ("another model", other, folder, {}),
        ("another model", weights, folder, {"labels": tmp_path / "names.txt"}),
        ("other images", weights, folder / "deeper", {}),
        (r"another top \(5, now 2\)", weights, folder, {"top": 2}),
        (r"another batch size \(3, now 4\)", weights, folder, {"batch_size": 4}),
    ]
    for message, model, images, options in changes:
        with pytest.raises(FileError, match=f"out.csv was begun with {message}.*--overwrite"):
            run(model, images, output, **options)
        assert output.read_bytes() == content
    with pytest.raises(FileError, match="was begun with images written as"):
        run(weights, folder / "deeper" / "..", output)
    assert output.read_bytes() == content
    # Without a wish, the size that the job was begun with is kept.
    assert run(weights, folder, output, batch_size=None).done_before == COUNT
    found = run(other, folder / "deeper", output, overwrite=True)
    assert (found.images, found.done_before) == (2, 0)
    assert len(read(output)) == 2


@pytest.mark.parametrize("ending", FORMATS)
def test_overwriting_starts_anew(weights: Path, folder: Path, tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"out.{ending}"
    run(weights, folder, output)
    content = output.read_bytes()
    found = run(weights, folder, output, overwrite=True)
    assert found.done_before == 0
    assert output.read_bytes() == content


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_that_is_not_ours_is_left_alone(
    weights: Path, folder: Path, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"out.{ending}"
    output.write_text("my own notes\n")
    with pytest.raises(FileError, match=f"out.{ending} exists and was not written by vitlab"):
        run(weights, folder, output)
    assert output.read_text() == "my own notes\n"


def test_a_file_that_was_edited_is_refused(weights: Path, folder: Path, tmp_path: Path) -> None:
    for ending, line in (("csv", "a,b\n"), ("jsonl", "{}\n"), ("jsonl", "nothing\n")):
        output = tmp_path / f"out.{ending}"
        run(weights, folder, output, overwrite=True)
        content = output.read_text() + line
        output.write_text(content)
        with pytest.raises(FileError, match=f"no prediction after record {COUNT}"):
            run(weights, folder, output)
        assert output.read_text() == content


def test_names_that_are_no_text_are_done_once(weights: Path, tmp_path: Path) -> None:
    folder = colours(tmp_path / "photos", 2)
    (folder / "00.png").rename(folder / "\udcff.png")
    for ending in ("csv", "parquet"):
        for done in (0, 2):
            assert run(weights, folder, tmp_path / f"out.{ending}").done_before == done


def test_two_processes_do_not_write_one_file(weights: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"

    refused: list[Prediction] = []

    def again(prediction: Prediction) -> None:
        if not refused:
            with pytest.raises(FileError, match="is being written by another process"):
                run(weights, folder, output)
            refused.append(prediction)

    run(weights, folder, output, each=again)
    assert refused
    assert len(read(output)) == COUNT


@pytest.mark.parametrize("format", [Csv(), JsonLines()])
def test_thousands_of_classes_survive(format: Format) -> None:
    top = tuple((f"class {i}", 1 / (i + 1)) for i in range(9000))
    long = replace(ODD, top=top)
    content = format.header + format.encode(long)
    assert len(content) > 1 << 17  # a cell that Python's reader refuses by default
    assert [prediction for _, prediction in whole_records(io.BytesIO(content), format)] == [long]


@pytest.mark.parametrize("format", [Csv(), JsonLines()])
def test_any_text_survives(format: Format) -> None:
    failed = Prediction(path="\r\n", label=None, probability=None, top=(), error='"')
    content = format.header + b"".join(map(format.encode, (ODD, failed, ODD)))
    found = list(whole_records(io.BytesIO(content), format))
    assert [prediction for _, prediction in found] == [ODD, failed, ODD]
    assert found[-1][0] == len(content)
    ends = [len(format.header), *(end for end, _ in found)]
    for length in range(len(content)):
        whole = list(whole_records(io.BytesIO(content[:length]), format))
        assert len(whole) == sum(end <= length for end in ends[1:])


def test_parquet_there_and_back(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [ODD])
    (found,) = parquet_records(tmp_path / "a.parquet")
    assert found.path == 'a "b",\nc/\\udcff.png'  # Parquet holds text alone
    assert replace(found, path=ODD.path) == ODD


def test_parquet_needs_its_extra(
    weights: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'vitlab\[parquet\]'"):
        run(weights, folder, tmp_path / "out.parquet")
    assert not list(tmp_path.iterdir())


def test_progress_is_told(weights: Path, folder: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    predict(weights, [folder], batch_size=BATCH, watch=lambda *step: steps.append(step))
    assert [done for done, _ in steps] == [*range(BATCH, COUNT, BATCH), COUNT]
    assert {total for _, total in steps} <= {None, COUNT}


def test_images_are_asked_for_as_they_are_needed(weights: Path, folder: Path) -> None:
    """An endless list is no trouble: predictions come while it is being read."""

    class Enough(Exception):
        pass

    asked = 0

    class Endless(io.BytesIO):
        def __iter__(self) -> Any:
            nonlocal asked
            while True:
                asked += 1
                yield f"{folder / '00.png'}\n".encode()

    seen: list[Prediction] = []

    def take(prediction: Prediction) -> None:
        seen.append(prediction)
        if len(seen) == 5 * BATCH:
            raise Enough

    lines = Endless(f"{folder / '01.png'}\n".encode())
    with pytest.raises(Enough):
        predict(weights, ["-"], batch_size=BATCH, each=take, stdin=lambda: lines)
    assert asked < 20 * BATCH
    assert seen[0].path == str(folder / "01.png")


def test_imagenet_names_of_real_weights(shared: Path, tmp_path: Path) -> None:
    model = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    names = shared / "data" / "imagenet1k_labels.txt"
    images = shared / "data" / "imagenette-mini" / "val" / "n01440764"
    told: list[Prediction] = []
    predict(model, sorted(images.iterdir())[:3], labels=names, each=told.append)
    assert [prediction.label for prediction in told] == ["tench"] * 3
