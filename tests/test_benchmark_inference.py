"""The comparison of engines: which cells, what is not measured again, and what is told of them."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.classifiers import saved_model
from vitlab.errors import VitlabError
from vitlab.jobs.benchmark.job import compared
from vitlab.jobs.benchmark.prepare import Prepared, engine, prepared
from vitlab.jobs.benchmark.result import Cell
from vitlab.timing.referee import MACHINE, Memory, Turn

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
inference: Any = importlib.import_module("inference")
libraries: Any = importlib.import_module("libraries")


def model(name: str) -> Prepared:
    return Prepared(
        name=name,
        places={inference.DEFAULT_ENGINE: f"/{name}"},
        folder=f"/{name}",
        fresh=True,
        task="single-label",
        parameters=3,
        bytes=12,
        flops=(10**9,),
        config={"width": 1},
    )


def entries(*rivals: str) -> list[tuple[Any, Any]]:
    options = inference.parse(["--rivals", *rivals])
    networks = [
        (model("plain"), ("timm", "transformers")),
        (model("twin"), ("vit-pytorch",)),
    ]
    return list(inference._pairs(networks, 8, options))


def cell(batch: int, memory: int = 5, **seconds: float) -> Cell:
    """Eight equal rounds; names with `_` for a blank."""
    times = {name.replace("_", " "): value for name, value in seconds.items()}
    times |= {inference.OURS: 1.0, inference.TWIN: 2.0}
    rounds = [
        {
            name: Turn(seconds=value, asleep=0.0, each=(value,))
            for name, value in (times | {MACHINE: 0.1}).items()
        }
        for _ in range(8)
    ]
    known = {entry.name: entry for entry, _ in entries(*inference.RIVALS)}
    names = [name for name in known if name in times]
    used = {name: Memory(ever=7_000_000, running=0) for name in names}
    used[inference.OURS] = Memory(ever=memory * 1_000_000, running=0)
    return Cell(
        batch=batch,
        entries=tuple(known[name] for name in names),
        rounds=rounds,
        memory=used,
        differences=dict.fromkeys(names, 0.0),
    )


def test_every_rival_meets_ours_on_its_weights() -> None:
    pairs = entries(*inference.RIVALS)
    assert [entry.name for entry, _ in pairs] == [
        inference.OURS,
        inference.TWIN,
        *inference.RIVALS,
    ]
    by_name = {entry.name: entry for entry, _ in pairs}
    assert by_name["vit-pytorch"].original == inference.TWIN
    assert {by_name[name].original for name in inference.RIVALS if name != "vit-pytorch"} == {
        inference.OURS
    }
    assert [entry.name for entry, _ in pairs if entry.ours] == [inference.OURS, inference.TWIN]
    factories = {contestant.name: contestant for _, contestant in pairs}
    assert factories["openvino"].factory == "inference:plain_openvino"
    assert factories["openvino"].arguments["threads"] == 2
    assert factories["vit-pytorch"].arguments["folder"] == "/twin"


def test_ratios_pair_with_our_side_of_the_same_network() -> None:
    found = cell(8, timm=1.5, **{"vit-pytorch": 2.2})
    assert inference.ratios(found, "timm") == [1.5] * 8
    assert inference.ratios(found, "vit-pytorch") == pytest.approx([1.1] * 8)
    assert inference.fastest(found) == "vit-pytorch"


def test_the_summary_tells_means_losses_and_memory() -> None:
    cells = [
        ("vit_ti16 b1", cell(1, timm=2.0, onnxruntime=0.9)),
        ("vit_ti16 b64", cell(64, timm=1.28, onnxruntime=1.6)),
        ("vit_s16 b64", cell(64, memory=9, timm=1.28, onnxruntime=1.6)),
    ]
    text = inference.report(cells)
    # The fastest: 0.9, 1.28 and 1.28, whose product is 1.4746.
    assert "against the fastest of each cell: 1.138 (1.138 to 1.138), at least 1.0 wanted" in text
    # 2 x 1.28 x 1.28 = 3.2768.
    assert "against timm: 1.485 (1.485 to 1.485), at least 1.25 wanted" in text
    assert "lost: vit_ti16 b1 against onnxruntime: 0.900 (0.900 to 0.900)" in text
    assert text.count("lost:") == 1
    assert "memory, vit_ti16 b64: 5 MB, onnxruntime 7: kept" in text
    assert "memory, vit_s16 b64: 9 MB, onnxruntime 7: missed" in text
    assert "against openvino" not in text


def test_cells_are_named_by_model_and_batch() -> None:
    assert inference.chosen(["vit_s16", "vit_b16:8"]) == [
        *(("vit_s16", batch) for batch in (1, 8, 64)),
        ("vit_b16", 8),
    ]
    for wrong in ("vit_x16", "vit_s16:7", "vit_s16:"):
        with pytest.raises(SystemExit, match=f"--only {wrong}: no such cell; valid: vit_ti16"):
            inference.chosen([wrong])


def test_what_is_known_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[tuple[str, int]] = []

    def measure(name: str, batch: int, *_: Any) -> Cell:
        measured.append((name, batch))
        return cell(batch, timm=1.5)

    monkeypatch.setattr(inference, "measure", measure)
    out = tmp_path / "runs" / "found.jsonl"
    words = ["inference.py", "--out", str(out), "--rivals", "timm", "--only"]
    monkeypatch.setattr(sys, "argv", [*words, "vit_ti16:8"])
    inference.main()
    first = capsys.readouterr().out
    assert "against timm: 1.500" in first
    with out.open("a") as file:
        file.write('{"key": {"mod')  # a run that was killed while it wrote
    monkeypatch.setattr(sys, "argv", [*words, "vit_ti16"])
    inference.main()
    assert measured == [("vit_ti16", 8), ("vit_ti16", 1), ("vit_ti16", 64)]
    assert sum("cell" in line for line in map(_read, out.read_text().splitlines())) == 3
    monkeypatch.setattr(sys, "argv", [*words, "vit_ti16", "--report", "--threads", "3"])
    with pytest.raises(SystemExit, match="no such cell yet"):  # with other threads
        inference.main()
    assert len(measured) == 3


def _read(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return found


def test_ours_and_theirs_compute_the_same(tmp_path: Path, no_type_checks: None) -> None:
    weights = saved_model(tmp_path / "tiny.safetensors")
    peers = ("timm", "transformers", "vit-pytorch")
    found = libraries.prepare(str(weights), folder=str(tmp_path / "out"), peers=peers, batch=3)()
    assert [names for _, names in found] == [["timm", "transformers"], ["vit-pytorch"]]
    results: dict[str, Any] = {}
    models, entries = {}, []
    for facts, names in found:
        told = prepared(facts)
        models[told.name] = told
        options: dict[str, Any] = {"folder": told.folder, "batch": 3}
        place = told.places[inference.DEFAULT_ENGINE]
        ours = engine(place, engine=inference.DEFAULT_ENGINE, merge_tokens=0, **options)
        results[told.name] = ours().tolist()
        for name in names:
            results[name] = libraries.peer(name, config=told.config, **options)().tolist()
            known = inference._pair(name, told, "theirs", 3, original=told.name)
            entries.append(known[0])
    # Tiny networks in float32.
    assert max(compared(results, entries, models).values()) < 1e-4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18_cifar", "timm has no ResNetConfig; valid: a ViTConfig"),
        ("vit_cifar_hybrid", "timm"),
    ],
)
def test_a_network_that_a_library_does_not_have(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(VitlabError, match=message):
        libraries.prepare(name, folder=str(tmp_path), peers=("timm",), batch=1)
