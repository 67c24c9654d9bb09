"""Predictions in parts: the same bytes after merging, however many processes were killed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.shard_files import write_folder
from vitlab.cli.main import run as main
from vitlab.data.shards.pack import pack
from vitlab.errors import ConfigError, FileError, InputError
from vitlab.evaluation.feature_file import reading_features
from vitlab.jobs.features import extract
from vitlab.jobs.parts.features import extract_parts, merge_features
from vitlab.jobs.parts.parts import Share
from vitlab.jobs.parts.predictions import (
    PredictionParts,
    merge_predictions,
    parts_of,
    predict_parts,
)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """44 images and a broken one, in parts of 8."""
    monkeypatch.setattr("vitlab.jobs.parts.parts.IMAGES", 10)
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "images")
    (folder / "bee" / "broken.png").write_bytes(b"no image")
    return Path("images")


def run(images: Any, output: str, **options: Any) -> Any:
    return predict_parts(
        "cifar10", [images], output=Path(output), batch_size=4, engine="torch", **options
    )


def files(output: str) -> dict[str, bytes]:
    folder = Path(f"{output}.parts")
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl"))}


def test_processes_that_are_killed_and_continued_by_others_give_the_same_bytes(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(images, "whole.csv")
    assert (whole.images, whole.failed, whole.done_before) == (45, 1, 0)
    assert len(files("whole.csv")) == 6 + 1  # with the list of images
    merged = merge_predictions(Path("whole.csv"))
    assert (merged.images, merged.failed) == (45, 1)
    with monkeypatch.context() as patch:  # as torchrun starts the processes
        for rank in ("1", "0"):
            patch.setenv("RANK", rank)
            patch.setenv("WORLD_SIZE", "2")
            run(images, "ranks.csv")
    # Killed within a part, and continued by an array of three.
    stopped = PredictionParts.open(
        "cifar10", [images], output=Path("array.csv"), batch_size=4, engine="torch"
    )
    for number in (2, 0):
        assert len(list(stopped.compute(number))) == 2
    next(iter(stopped.compute(1)))
    for part in ("3/3", "1/3"):
        run(images, "array.csv", part=part)
    with pytest.raises(FileError, match=r"2 of 6 parts of array\.csv are missing, such as 000001"):
        merge_predictions(Path("array.csv"))
    (images / "bee" / "late.png").write_bytes(b"")  # not in the list any more
    last = run(images, "array.csv", part="2/3")
    assert (last.images, last.done_before) == (16, 0)
    assert run(images, "array.csv").done_before == 45
    for name in ("ranks.csv", "array.csv"):
        assert files(name) == files("whole.csv")
        merge_predictions(Path(name))
        assert Path(name).read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_shards_and_lists_of_files(images: Path, ending: str) -> None:
    pack(images, Path("shards"), images=9)
    names = sorted(str(path) for path in images.rglob("*.png"))[:13]
    Path("list.txt").write_text("\n".join(names) + "\n")
    assert run("shards", f"shards.{ending}").images == 45
    assert run("@list.txt", f"list.{ending}").images == 13
    for name, count in (("shards", 45), ("list", 13)):
        assert merge_predictions(Path(f"{name}.{ending}")).images == count
    if ending == "jsonl":
        lines = [json.loads(line) for line in Path("list.jsonl").read_text().splitlines()]
        assert [line["path"] for line in lines] == names
        found = [json.loads(line) for line in Path("shards.jsonl").read_text().splitlines()]
        assert {Path(line["path"]).name for line in found} >= {Path(name).name for name in names}
        by_name = {"/".join(Path(line["path"]).parts[-2:]): line["label"] for line in found}
        for line in lines:
            assert by_name["/".join(Path(line["path"]).parts[-2:])] == line["label"]


def part(output: str, number: int) -> Path:
    """File of a part."""
    return parts_of(Path(output)).path(number)


def test_features_in_parts_are_those_of_one_file(images: Path) -> None:
    pack(images, Path("shards"), images=9)
    for source, ending in (("images", "npz"), ("shards", "parquet")):
        whole, output = Path(f"{source}.whole.{ending}"), Path(f"{source}.{ending}")
        extract("cifar10", [source], output=whole, batch_size=4)
        found = [
            extract_parts("cifar10", [source], output=output, batch_size=4, part=f"{n}/2")
            for n in (2, 1)
        ]
        assert (sum(each.images for each in found), sum(each.failed for each in found)) == (45, 1)
        merged = merge_features(output)
        assert (merged.images, merged.labelled, len(merged.broken)) == (44, 44, 1)
        with reading_features(whole) as one, reading_features(output) as two:
            assert one.names(range(44)) == two.names(range(44))
            assert one.info == two.info
            rows = [np.concatenate(list(each.chunks(50))) for each in (one, two)]
        np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)  # batches of other images
    for changes, expected in FEATURE_MISTAKES.items():
        with pytest.raises((ConfigError, FileError, InputError), match=expected) as caught:
            extract_parts("cifar10", ["shards"], output=output, **{"batch_size": 4} | dict(changes))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="sample in parts; valid: files and folders"):
        extract_parts("cifar10", ["sample"], output=Path("sample.npz"))


FEATURE_MISTAKES: dict[tuple[tuple[str, Any], ...], str] = {
    (("kind", "patches"),): "was begun with another kind .pooled, now patches.; --overwrite",
    (("batch_size", 5),): "was begun with another batch size .4, now 5.",
    (("split", "train"),): "parts take no --split",
}


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "share": (lambda: run("images", "p.csv", part="0/3"), "part '0/3'; valid: i/n with i from 1"),
    "top": (lambda: run("images", "p.csv", top=3), "was begun with another top"),
    "images": (lambda: run("images/bee", "p.csv"), "was begun with other images"),
    "standard input": (lambda: run("-", "other.csv"), "- is standard input, which is read once"),
    "nothing": (lambda: merge_predictions(Path("none.csv")), "no parts; valid: an --output"),
    "damage": (
        lambda: part("p.csv", 1).write_text("") or merge_predictions(Path("p.csv")),
        r"000001-\w+\.jsonl: 0 predictions instead of 8; remove it",
    ),
    "part of another job": (
        lambda: (
            run("images", "q.csv", top=3),
            shutil.copy(part("q.csv", 1), "p.csv.parts"),
            run("images", "p.csv"),
        ),
        r"p\.csv\.parts/000001-\w+\.jsonl is a part of another model, other images or other opt",
    ),
    "merging it": (lambda: merge_predictions(Path("p.csv")), "is a part of another model"),
    "changed settings": (
        lambda: (
            replace_text(Path("p.csv.parts/parts.json"), '"top": 5', '"top": 4'),
            merge_predictions(Path("p.csv")),
        ),
        "not the settings of parts .they were changed",
    ),
    "settings": (
        lambda: (Path("p.csv.parts/parts.json").write_text("[]"), run("images", "p.csv")),
        "not the settings of parts",
    ),
}


def replace_text(path: Path, old: str, new: str) -> int:
    text = path.read_text()
    assert old in text
    return path.write_text(text.replace(old, new))


def test_mistakes_are_one_line(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(images, "p.csv")
    for mistake, (call, expected) in MISTAKES.items():
        with pytest.raises((ConfigError, FileError, InputError), match=expected) as caught:
            call()
        assert "\n" not in str(caught.value), mistake
    again = run("images", "p.csv", overwrite=True)
    assert again.done_before == 0
    assert Share.parse("3/16") == Share(number=2, of=16)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Share.parse("3/16") == Share(number=18, of=32)  # half of the third share
    assert parts_of(Path("p.csv")).missing == []


REFUSED = {
    "predict cifar10 images --output q.csv": "predict in 2 processes .* valid for several: --parts",
    "predict cifar10 images --output q.csv --parts --overwrite": "valid: delete OUT.parts first",
    "predict --merge q.csv": "predict --merge in 2 processes",
}
"""Commands of one of several processes."""


def test_on_the_command_line(
    images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return code, written.out, written.err

    shutil.rmtree(images / "cat")
    options = ("--output", "p.csv", "--engine", "torch", "--batch-size", "4")
    code, _, errors = call("predict", "cifar10", images, *options, "--parts")
    assert code == 3
    assert "broken.png" in errors
    code, printed, _ = call("predict", "--merge", "p.csv")
    assert (code, printed) == (3, "p.csv: 34 images, 1 cannot be read\n")
    code, _, errors = call("predict", "--merge", "p.csv", "--output", "q.csv")
    assert (code, errors.count("\n")) == (2, 1)
    again = ("--output", "q.csv", "--engine", "torch", "--batch-size", "4")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, printed, errors = call("predict", "cifar10", images, *again, "--parts")
    assert code == 0  # any other ends the other processes
    assert "1 cannot be read" in printed
    assert "broken.png" in errors
    for words, expected in REFUSED.items():
        code, _, errors = call(*words.split())
        assert (code, errors.count("\n")) == (2, 1)
        assert re.search(expected, errors)
    monkeypatch.delenv("WORLD_SIZE")
    code, _, errors = call("predict", "cifar10", images, "--parts")
    assert (code, errors) == (2, "error: parts need --output FILE.csv, .jsonl or .parquet\n")
