"""`vitlab benchmark`: tables, JSON and files of one contest; mistakes are one line."""

import json
from pathlib import Path

import pytest

from command import Command
from data.fetchable import IMAGES, fetchable
from jobs.classifiers import LABELS, colours, saved_model
from vitlab.weights.exported import FACTS_KEY
from vitlab.weights.resolve import bundled_folder


def test_a_benchmark_is_told_and_written(command: Command, tmp_path: Path) -> None:
    """In real processes: plain and merged, with what merging costs in accuracy."""
    weights = saved_model(tmp_path / "tiny.safetensors")
    for split in ("train", "test"):
        for label in LABELS:
            colours(tmp_path / "data" / split / label, 2)
    asked = ("benchmark", weights, "--batch", 3, "--merge-tokens", "0,5", "--rounds", 1)
    given = ("--seconds", 0.001, "--threads", 1, "--data", tmp_path / "data")
    outcome = command(*asked, *given, "--output", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "batch of 3" in outcome.out
    assert "too few rounds" in outcome.out
    files = {path.name for path in (tmp_path / "out").iterdir()}
    kinds = ("json", "md", "png", "svg")
    assert files == {*(f"benchmark.{kind}" for kind in kinds), "curve.png", "curve.svg"}
    told = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    plain, merged = told["cells"][0]["contestants"]
    assert (plain["name"], merged["name"]) == ("tiny torch", "tiny torch R=5")
    assert merged["reference"] == merged["original"] == "tiny torch"
    assert plain["difference"] == 0 < merged["difference"]
    assert plain["flops"] > merged["flops"]
    assert min(plain["memory"]["ever"], merged["memory"]["ever"]) > 10e6
    assert (plain["place"], merged["place"], plain["fresh"]) == (None, None, False)
    assert [(a["merge_tokens"], a["images"]) for a in told["accuracies"]] == [(0, 6), (5, 6)]


def test_missing_data_is_fetched_on_request(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = fetchable(monkeypatch, tmp_path / "toy")
    short = ("--batch", 1, "--rounds", 1, "--seconds", 0.001, "--threads", 1)
    asked = ("benchmark", model, "--data", data, "--engines", "torch", *short, "--json")
    assert "get it: vitlab data fetch toy" in command(*asked).mistake
    outcome = command(*asked, "--download")
    assert outcome.code == 0, outcome.err
    (accuracy,) = json.loads(outcome.out)["accuracies"]
    assert accuracy["images"] == IMAGES


@pytest.mark.slow
def test_exported_files_take_part(command: Command, tmp_path: Path) -> None:
    """Two of the same weights, of which one says that it was quantised."""
    onnx = pytest.importorskip("onnx")
    folder = bundled_folder("cifar10")
    assert folder is not None
    for name, kind in (("a.onnx", None), ("b.onnx", "int8")):
        stored = onnx.load(str(folder / "model.onnx"))
        for told in stored.metadata_props:
            if told.key == FACTS_KEY:
                facts = json.loads(told.value) | {"network": "same", "quantize": kind}
                told.value = json.dumps(facts)
        onnx.save(stored, str(tmp_path / name))
    files = (tmp_path / "a.onnx", tmp_path / "b.onnx")
    given = ("--batch", 2, "--rounds", 1, "--seconds", 0.001, "--threads", 1)
    outcome = command("benchmark", *files, *given)
    assert outcome.code == 0, outcome.err
    assert "b.onnx auto" in outcome.out
    assert ", by design" in outcome.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("vit_test", "--engines", "abacus"), "unknown engine 'abacus'; valid: "),
        (("vit_test", "--batch", "1,x"), "'1,x' is not numbers with commas between them"),
        (("vit_test", "--merge-tokens", "4,4"), "merge_tokens 4, 4: one of them comes twice"),
        (("gone.onnx", "--batch", "1"), "gone.onnx: no such file"),
        (("vit_test", "vit_test"), "models vit_test, vit_test: one of them comes twice"),
    ],
)
def test_mistakes_are_one_line(command: Command, words: tuple[str, ...], message: str) -> None:
    assert message in command("benchmark", *words).mistake


def test_a_file_is_no_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    mistake = command("benchmark", "vit_test", "--output", tmp_path / "out").mistake
    assert "a file; valid: a folder" in mistake
