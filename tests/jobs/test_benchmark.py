"""`vitlab benchmark`: what is compared, what is refused, and what the figures mean."""

import json
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jobs.classifiers import saved_model
from vitlab.classify.classifier import load, open_classifier
from vitlab.errors import FileError, InputError, UnknownName, VitlabError
from vitlab.jobs.benchmark.job import _check_evaluable as check_evaluable
from vitlab.jobs.benchmark.job import _entries as entries_of
from vitlab.jobs.benchmark.job import _with_unique_names as with_unique_names
from vitlab.jobs.benchmark.job import benchmark, changed, check_data, compared
from vitlab.jobs.benchmark.plan import Plan
from vitlab.jobs.benchmark.plot import write_benchmark
from vitlab.jobs.benchmark.prepare import (
    Prepared,
    engine,
    engines_of,
    prepare,
    prepare_exported,
    prepared,
    titles,
)
from vitlab.jobs.benchmark.result import (
    Accuracy,
    Benchmark,
    Cell,
    Entry,
    markdown,
    models,
    notes,
    speeds,
)
from vitlab.models.cost import cost
from vitlab.timing.referee import MACHINE, SGEMM_SIDE, Memory, Turn
from vitlab.weights.resolve import bundled_folder

FLOPS = SGEMM_SIDE**3


def entry(name: str, **changes: Any) -> Entry:
    made = Entry(
        name=name,
        model="m",
        runs="torch",
        merge_tokens=0,
        reference="a",
        original="a",
        exact=True,
        parameters=3_000_000,
        flops=FLOPS,
        bytes=12_000_000,
        fresh=False,
    )
    return replace(made, **changes)


def cell(batch: int = 5, **seconds: list[float]) -> Cell:
    """Rounds in which each took so many seconds for a call, in two calls that differ by a fifth."""
    rounds = [
        {name: turn(times[number]) for name, times in (seconds | {MACHINE: machine}).items()}
        for machine in ([1.0] * len(seconds["a"]),)
        for number in range(len(seconds["a"]))
    ]
    return Cell(
        batch=batch,
        entries=tuple(entry(name) for name in seconds),
        rounds=rounds,
        memory={name: Memory(ever=4_000_000, running=3_000_000) for name in seconds},
        differences=dict.fromkeys(seconds, 1e-5),
    )


def turn(seconds: float) -> Turn:
    return Turn(seconds=seconds, asleep=0.0, each=(0.9 * seconds, 1.1 * seconds))


def test_figures_of_a_contestant() -> None:
    found = cell(a=[2.0, 4.0, 3.0, 3.0, 3.0, 3.0], b=[1.0] * 6)
    assert found.images_per_second("a") == pytest.approx(5 / 3)
    assert found.percentile("b", 0.5) == pytest.approx(1.0)
    # Of five images a cube each, where the machine does two cubes in the same second.
    assert found.share_of_limit(found.entries[1]) == pytest.approx(2.5)
    assert found.against("b", "a").ratio == pytest.approx(3.0)


def test_a_percentile_needs_a_call_beyond_it() -> None:
    few = cell(a=[1.0] * 4)
    assert few.percentile("a", 0.5) is not None
    assert few.percentile("a", 0.9) is None
    assert cell(a=[1.0] * 5).percentile("a", 0.9) == pytest.approx(1.1)
    assert cell(a=[1.0] * 49).percentile("a", 0.99) is None
    assert cell(a=[1.0] * 50).percentile("a", 0.99) is not None


def test_places_only_where_no_interval_leaves_a_doubt() -> None:
    a, noise = [4.0] * 8, [3.0, 5.0] * 4
    found = cell(a=a, b=noise, c=[1.0] * 8, d=[9.0] * 8)
    places = {name: found.place(name) for name in "abcd"}
    assert places == {"a": (2, 3), "b": (2, 3), "c": (1, 1), "d": (4, 4)}
    rows = {row[0]: row for row in speeds(found)}
    assert [rows[name][7] for name in "abcd"] == ["2-3", "2-3", "1", "4"]
    few = cell(a=[4.0] * 3, b=[1.0] * 3)
    assert few.place("b") == (1, 2)
    assert "too few rounds" in speeds(few)[1]


def found(**changes: Any) -> Benchmark:
    made = Benchmark(
        cells=(cell(1, a=[2.0] * 8, b=[1.0] * 8), cell(7, a=[9.0] * 8, b=[8.0] * 8)),
        machine={"processor": "an abacus", "system": "wood"},
        threads=2,
    )
    return replace(made, **changes)


def test_markdown_has_a_table_for_each_batch(tmp_path: Path) -> None:
    text = markdown(found(), "vitlab benchmark m")
    assert "an abacus, 2 threads" in text
    assert "```\nvitlab benchmark m\n```" in text
    lines = text.splitlines()
    at = lines.index("## Batch of 7")
    assert lines[at + 5].split(" | ")[:2] == ["| b", "0.875"]
    assert "1.125 | 1.125 to 1.125 | 1 |" in lines[at + 5]
    widths = {line.count("|") for line in lines[at + 2 : at + 6]}
    assert len(widths) == 1


def test_files_hold_all_that_was_measured(tmp_path: Path) -> None:
    judged = [
        Accuracy(
            model="m",
            merge_tokens=r,
            images=50,
            accuracy=0.8,
            interval=(0.7, 0.9),
            change=-0.02 * r / 8,
            change_interval=(-0.05 * r / 8, 0.01 * r / 8),
        )
        for r in (0, 8)
    ]
    cells = tuple(
        replace(one, entries=(one.entries[0], replace(one.entries[1], merge_tokens=8)))
        for one in found().cells
    )
    whole = found(accuracies=tuple(judged), cells=cells)
    written = write_benchmark(whole, tmp_path / "out", "vitlab benchmark m")
    names = {path.name for path in written}
    pictures = {f"{name}.{kind}" for name in ("benchmark", "curve") for kind in ("png", "svg")}
    assert names == {"benchmark.json", "benchmark.md", *pictures}
    told = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    first, second = told["cells"][1]["contestants"]
    assert (first["place"], second["place"]) == (2, 1)
    assert second["images_per_second"] == 0.875
    assert second["ratio"] == pytest.approx(9 / 8)
    assert second["latency"]["p99"] is None
    assert len(told["cells"][1]["rounds"]) == 8
    assert told["accuracies"][1]["merge_tokens"] == 8
    assert (
        "80.0% (70.0% to 90.0%), -2.0 points (-5.0 to +1.0)"
        in (tmp_path / "out" / "benchmark.md").read_text()
    )


def test_an_interval_without_end_is_no_number_in_json() -> None:
    told = Benchmark(cells=(cell(a=[2.0], b=[1.0]),), machine={}, threads=1).to_dict()
    assert told["cells"][0]["contestants"][1]["interval"] == [0.0, None]
    json.dumps(told, allow_nan=False)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(FileError, match="a file; valid: a folder"):
        write_benchmark(found(), tmp_path / "out")


def test_contestants_that_disagree_are_not_timed() -> None:
    model = Prepared(
        name="m",
        places={},
        folder="",
        fresh=False,
        task="single-label",
        parameters=1,
        bytes=4,
        flops=(1,),
        config={},
    )
    logits = np.array([[1.0, 2.0, 4.0], [0.0, -1.0, 3.0]])
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    peer = entry("b", runs="timm", ours=False)
    results = {"a": likely.tolist(), "b": (logits + 5.0).tolist()}
    assert compared(results, [entry("a"), peer], {"m": model})["b"] < 1e-12
    logits[1, 2] += 0.003
    with pytest.raises(InputError, match=r"b: results differ from a by 0\.002.*nothing was timed"):
        compared(results | {"b": logits.tolist()}, [entry("a"), peer], {"m": model})
    merged = entry("b", merge_tokens=8, exact=False)
    difference = compared({"a": likely, "b": likely[::-1]}, [entry("a"), merged], {"m": model})
    assert difference["b"] > 1
    with pytest.raises(InputError, match="differ"):
        compared(results | {"b": (logits * np.nan).tolist()}, [entry("a"), peer], {"m": model})


def test_labels_are_compared_where_32_bits_tell_them() -> None:
    told = {"task": "multi-label", "flops": (1,), "config": {}}
    facts: dict[str, Any] = {"name": "m", "places": {}, "folder": "", "fresh": False}
    model = Prepared(**facts, **told, parameters=1, bytes=4)
    logits = np.array([[-200.0, -3.0, 0.5, 4.0, 90.0]])
    likely = (1 / (1 + np.exp(-logits))).astype(np.float32)
    peer = entry("b", runs="timm", ours=False)
    found = compared({"a": likely.tolist(), "b": logits.tolist()}, [peer], {"m": model})
    assert found["b"] < 1e-4
    with pytest.raises(InputError, match="differ from a by 1"):
        compared({"a": likely.tolist(), "b": (logits + 1).tolist()}, [peer], {"m": model})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": ("abacus",)}, "unknown engine 'abacus'"),
        ({"batches": (0,)}, r"batches \[0\]; valid: numbers from 1 on"),
        ({"batches": (8, 8)}, "batches 8, 8: one of them comes twice"),
        ({"models": ()}, "no models"),
        ({"rounds": 0}, "rounds 0"),
        ({"seconds": math.nan}, "of nan seconds; valid: at least 1, above 0"),
        ({"seconds": math.inf}, "of inf seconds"),
        ({"engines": ("auto",), "merge_tokens": (0, 8)}, "merge_tokens 8 needs the engine torch"),
        (
            {"engines": ("torch", "auto"), "merge_tokens": (8,)},
            "merge_tokens 8 first with engines torch, auto; valid: 0 first",
        ),
        ({"threads": 0}, "threads 0"),
        (
            {"models": ("a.onnx",), "merge_tokens": (0, 8)},
            "merge_tokens 8: a.onnx is as it was exported; `vitlab export MODEL --merge-tokens 8",
        ),
    ],
)
def test_a_plan_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnknownName), match=message):
        Plan(**({"models": ("vit_test",)} | changes))


@pytest.mark.parametrize(
    ("asked", "engines"),
    [
        ({}, ("auto",)),
        ({"merge_tokens": (0, 8)}, ("torch",)),
        ({"merge_tokens": (8,)}, ("torch",)),
        ({"engines": ("aoti",)}, ("aoti",)),
    ],
)
def test_what_is_measured_is_what_users_run(
    asked: dict[str, Any], engines: tuple[str, ...]
) -> None:
    assert Plan(models=("vit_test",), **asked).runs_in == engines


def test_auto_is_torch_where_no_runtime_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vitlab.classify.engines.runtimes", "vitlab.exporting.onnx"):
        monkeypatch.setattr(import_module(name), "find_spec", lambda name: None)
    plan = Plan(models=("vit_test",))
    asked: dict[str, Any] = {"engines": plan.runs_in, "merge_tokens": plan.merge_tokens}
    told = prepare("vit_test", folder=str(tmp_path), batch=3, **asked)()
    found = prepared(told)
    assert not list(tmp_path.rglob("*.onnx"))
    opened = open_classifier(found.place("auto", 0), engine="auto")
    assert opened.engine == "torch"
    assert np.shape(answers(found, "auto")) == (3, found.config["classes"])


def test_auto_is_torch_where_a_model_cannot_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxscript")

    def refuse(*model: Any, **options: Any) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr("vitlab.jobs.export.export", refuse)
    asked: dict[str, Any] = {"engines": ("auto",), "merge_tokens": (0,)}
    told = prepare("vit_test", folder=str(tmp_path), batch=3, **asked)()
    assert np.shape(answers(prepared(told), "auto"))[0] == 3
    assert "no model.onnx beside the weights: no such operator" in caplog.text


def answers(told: Prepared, runs: str, **changes: Any) -> Any:
    """What a contestant gives for the images, in this process."""
    arguments = {"engine": runs, "merge_tokens": 0, "batch": 3} | changes
    place = told.place(runs, arguments["merge_tokens"])
    return engine(place, told.folder, **arguments)().tolist()


def test_engines_compute_the_same(tmp_path: Path, no_type_checks: None) -> None:
    weights = saved_model(tmp_path / "tiny.safetensors")
    engines = ("torch", "onnxruntime")
    asked: dict[str, Any] = {"engines": engines, "merge_tokens": (0, 5), "batch": 4}
    plain = prepared(prepare(str(weights), folder=str(tmp_path), **asked)())
    assert plain.name == "tiny"
    assert plain.places["torch"] == str(weights)
    assert plain.flops[0] > plain.flops[1]
    assert plain.bytes == 4 * plain.parameters
    results = {
        "a": answers(plain, "torch"),
        "merged": answers(plain, "torch", merge_tokens=5),
        "onnx": answers(plain, "onnxruntime"),
        "onnx merged": answers(plain, "onnxruntime", merge_tokens=5),
    }
    entries = [
        entry("onnx", runs="onnxruntime"),
        entry("merged", exact=False),
        entry("onnx merged", original="merged"),
    ]
    differences = compared(results, entries, {"m": plain})
    # Tiny networks in float32.
    assert max(differences[name] for name in ("onnx", "onnx merged")) < 1e-4
    assert differences["merged"] > 1e-3


def test_compile_computes_through_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_type_checks: None
) -> None:
    compiled: list[int] = []

    def compile_nothing(function: Any) -> Any:
        def call(images: torch.Tensor) -> Any:
            compiled.append(len(images))
            return function(images)

        return call

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr("vitlab.training.state.check_compiler", lambda device: None)
    weights = saved_model(tmp_path / "tiny.safetensors")
    asked: dict[str, Any] = {"engines": ("torch", "compile"), "merge_tokens": (0,), "batch": 4}
    plain = prepared(prepare(str(weights), folder=str(tmp_path), **asked)())
    expected = answers(plain, "torch")
    assert compiled == []
    assert answers(plain, "compile") == expected
    assert sum(compiled) == 4


def test_a_name_gets_weights_with_opinions(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"engines": ("torch",), "merge_tokens": (0,), "batch": 3}
    fresh = prepared(prepare("vit_test", folder=str(tmp_path), **asked)())
    assert fresh.fresh
    ours = np.log(answers(fresh, "torch"))
    assert ours.std(axis=1).min() > 1e-3


def test_a_model_that_is_not_known(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"engines": ("torch",), "merge_tokens": (0,), "batch": 1}
    with pytest.raises(VitlabError, match="unknown model or file 'vit_tset'; did you mean"):
        prepare("vit_tset", folder=str(tmp_path), **asked)


def test_accuracies_are_compared_image_by_image() -> None:
    changes = np.array([0.0] * 95 + [-1.0] * 5)
    mean, (low, high) = changed(changes)
    assert mean == pytest.approx(-0.05)
    # Binomial: 5 of 100 have a standard deviation of 2.2.
    assert low == pytest.approx(-0.095, abs=0.012)
    assert high == pytest.approx(-0.01, abs=0.012)
    assert changed(np.zeros(7)) == (0.0, (0.0, 0.0))


def told_of(name: str, **changes: Any) -> Prepared:
    """A model with weights, or a file where `exported` says so."""
    made = Prepared(
        name=name,
        places={"torch": name, "onnxruntime": f"{name}.onnx"},
        folder="",
        fresh=False,
        task="single-label",
        parameters=1,
        bytes=4,
        flops=(9,) if changes.get("exported") else (9, 7),
        config={},
    )
    return replace(made, **changes)


def test_who_is_compared_with_whom() -> None:
    """Contestants of the same weights: the first that computes the same, else the first of all."""
    file = {"exported": True, "places": {"onnxruntime": "f"}, "network": "x"}
    plan = Plan(models=("m",), engines=("torch", "onnxruntime"), merge_tokens=(0, 8))
    models = [
        told_of("m", network="x"),
        told_of("plain.onnx", **file),
        told_of("merged.onnx", **file, merge_tokens=8),
        told_of("int8.onnx", **file, quantize="int8"),
        told_of("pixels.onnx", **file, pixels=True),
        told_of("other.onnx", **file | {"network": None}),
    ]
    found = {entry.name: entry for entry in entries_of(plan, models)}
    assert {name: (e.original, e.exact, e.by_design) for name, e in found.items()} == {
        "m torch": ("m torch", True, False),
        "m torch R=8": ("m torch", False, True),
        "m onnxruntime": ("m torch", True, False),
        "m onnxruntime R=8": ("m torch R=8", False, False),
        "plain.onnx onnxruntime": ("m torch", True, False),
        "merged.onnx onnxruntime R=8": ("m torch R=8", False, False),
        "int8.onnx onnxruntime": ("m torch", False, True),
        "pixels.onnx onnxruntime": ("pixels.onnx onnxruntime", True, False),
        "other.onnx onnxruntime": ("other.onnx onnxruntime", True, False),
    }
    assert {e.reference for e in found.values()} == {"m torch"}
    assert (found["m torch"].flops, found["m onnxruntime R=8"].flops) == (9, 7)


def test_what_an_exported_file_tells_of_itself(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = bundled_folder("cifar10")
    assert folder is not None
    file = str(folder / "model.onnx")
    asked: dict[str, Any] = {"title": "t", "folder": str(tmp_path), "batch": 5}
    told = prepare_exported(file, engines=("torch",), **asked)()
    found = prepared(told)
    model = load("cifar10").model
    assert (found.name, found.places) == ("t", {"onnxruntime": file})
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.flops == (cost(model).flops,)
    assert found.bytes == (folder / "model.onnx").stat().st_size
    likely = np.array(answers(found, "onnxruntime"))
    assert likely.shape == (3, 10)
    own = np.load(tmp_path / "images.npy")
    assert own.shape == (5, 3, 32, 32)
    with torch.inference_mode():
        wanted = model(torch.from_numpy(own[:3])).softmax(dim=-1)
    # Two runtimes in float32.
    np.testing.assert_allclose(likely, wanted, atol=2e-5)


def test_files_run_where_they_can_and_are_told_apart() -> None:
    asked = ("torch", "openvino", "auto")
    assert engines_of("a.onnx", asked) == ("openvino", "auto")
    assert engines_of("a.onnx", ("torch", "aoti")) == ("onnxruntime",)
    assert engines_of("a.onnx", Plan(models=("a.onnx",)).runs_in) == ("auto",)
    assert engines_of("a.pt2", ("onnxruntime",)) == ("aoti",)
    assert titles(["x/a.onnx", "a.pt2", "y/a.onnx", "y/b.onnx", "run"]) == {
        "x/a.onnx": "x/a.onnx",
        "a.pt2": "a.pt2",
        "y/a.onnx": "y/a.onnx",
        "y/b.onnx": "b.onnx",
    }


def test_missing_percentiles_are_explained() -> None:
    few = Benchmark(cells=(cell(a=[1.0] * 4),), machine={}, threads=1)
    assert "p90 needs 10 and p99 100; --rounds and --seconds give more" in notes(few)
    many = Benchmark(cells=(cell(a=[1.0] * 50),), machine={}, threads=1)
    assert "p90" not in notes(many)


def test_what_is_not_known_is_left_out() -> None:
    dumb = replace(entry("b"), parameters=None, flops=None, by_design=True)
    one = replace(cell(a=[1.0] * 8, b=[2.0] * 8), entries=(entry("a"), dumb))
    whole = Benchmark(cells=(one,), machine={}, threads=1)
    assert speeds(one)[1][-1] == "-"
    assert models(whole)[1][1][1:] == ("-", "-", "-", "12.0", "1e-05, by design")
    assert "so that logits differ" in notes(whole)
    assert whole.to_dict()["cells"][0]["contestants"][1]["share_of_limit"] is None


def test_accuracy_of_pixels_is_refused_before_anything_is_timed() -> None:
    with pytest.raises(InputError, match="m takes 8-bit pixels; accuracy is for models that"):
        check_evaluable([told_of("m", exported=True, pixels=True)])


@pytest.mark.slow
def test_random_weights_are_not_judged() -> None:
    with pytest.raises(InputError, match="vit_test has random weights, whose accuracy says noth"):
        benchmark(Plan(models=("vit_test",), threads=1), data="sample")
    with pytest.raises(UnknownName, match="unknown split 'tset'; did you mean test"):
        check_data("sample", "tset")
    with pytest.raises(UnknownName, match="unknown dataset"):
        check_data("smaple", "test")
    check_data("sample", "test")


def test_models_of_one_name_are_called_as_they_were_given() -> None:
    def told(name: str) -> Prepared:
        facts = {"places": {}, "folder": "", "fresh": False, "task": "single-label", "flops": (1,)}
        return Prepared(name=name, **facts, parameters=1, bytes=4, config={})

    plan = Plan(models=("a/pets", "b/pets", "c/cars"))
    models = [told("pets"), told("pets"), told("cars")]
    assert [model.name for model in with_unique_names(plan, models)] == ["a/pets", "b/pets", "cars"]


def test_what_cannot_be_judged_is_told_before_anything_is_timed() -> None:
    facts = {"places": {}, "folder": "", "fresh": False, "task": "single-label", "flops": (1,)}
    model = Prepared(name="m", **facts, parameters=1, bytes=4, config={}, judgeable=False)
    with pytest.raises(InputError, match="m: its head was not trained, or nothing says"):
        check_evaluable([model])
