"""Exported models behind the predictor: the answers of torch, without torch, and none of others."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import vitlab
from jobs.classifiers import colours
from vitlab.classify import classifier as opening
from vitlab.classify.classifier import open_classifier
from vitlab.classify.engines import runtimes as onnx_engine
from vitlab.classify.engines.runtimes import OpenedOnce
from vitlab.classify.engines.session import SessionEngine, Source
from vitlab.classify.exported import StaleExport, open_beside
from vitlab.data.sources.cifar import CIFAR10_LABELS
from vitlab.errors import InputError, MissingExtra, UnknownName, WeightsError
from vitlab.jobs.export import write_onnx_beside
from vitlab.machine.device import CACHE, NotEnoughMemory, check_weights, within_memory
from vitlab.objectives.objective import objective_of
from vitlab.weights.bundle import ONNX, WEIGHTS, record_file
from vitlab.weights.exported import FACTS_KEY, Facts, read_export_metadata, read_metadata
from vitlab.weights.resolve import bundled_folder
from weights.bundles import make_bundle, small_model

pytest.importorskip("onnxscript")
ROOT = Path(__file__).resolve().parents[2]
# Two runtimes and two orders of summation, in float32.
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
FACTS = Facts(
    weights=None,
    preprocess_inside=False,
    quantize=None,
    zero_head=False,
    batch=None,
    output_bytes=2**20,
    peak_bytes=2**20,
    weight_bytes=1,
)
PLAIN = vitlab.Preprocessing(size=(2, 3), mean=(0.0,) * 5, std=(1.0,) * 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an ONNX file: the one that is part of the package, in a run's folder."""
    inside = bundled_folder("cifar10")
    assert inside is not None
    return copied(inside, tmp_path_factory.mktemp("run") / "bundle")


def copied(bundle: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in bundle.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return colours(tmp_path / "photos", 7)


def probabilities(model: Path, photos: Path, **options: Any) -> NDArray[np.float64]:
    """Of every photo and class, in the order of the labels."""
    predictor = open_classifier(model, **options).predictor(batch_size=3)
    found = [p for batch in predictor.stream(sorted(photos.iterdir()), top=10) for p in batch]
    return np.array([[dict(p.top)[label] for label in CIFAR10_LABELS] for p in found])


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_every_engine_answers_as_torch_does(engine: str, bundle: Path, photos: Path) -> None:
    pytest.importorskip(engine)
    wanted = probabilities(bundle, photos, engine="torch")
    assert_allclose(probabilities(bundle, photos, engine=engine), wanted, **CLOSE)
    assert_allclose(probabilities(bundle / ONNX, photos, engine=engine), wanted, **CLOSE)
    lone = open_classifier(bundle, engine=engine).predictor()
    (batch,) = lone.stream(sorted(photos.iterdir()), top=1)
    assert [p.probability for p in batch] == pytest.approx(wanted.max(axis=1), rel=1e-4)


@pytest.mark.parametrize("given", ["run", "bundle", "file"])
def test_the_usual_engine_is_onnx_runtime(given: str, bundle: Path) -> None:
    path = {"run": bundle.parent, "bundle": bundle, "file": bundle / ONNX}[given]
    found = open_classifier(path)
    assert found.engine == "onnxruntime"
    assert found.fingerprint() == open_classifier(path).fingerprint()


def test_openvino_is_usual_where_it_is_faster(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.machine.device.wide_vectors", lambda: True)
    for path in (bundle, bundle / ONNX):
        assert open_classifier(path).engine == "openvino"
        assert open_classifier(path, quickly=True).engine == "onnxruntime"
    with monkeypatch.context() as patched:
        patched.setattr(onnx_engine, "STREAMED", 0)
        assert open_classifier(bundle).engine == "onnxruntime"
    with monkeypatch.context() as patched:
        facts = read_export_metadata(read_metadata(bundle / ONNX), ONNX)
        whole = replace(facts, facts=replace(facts.facts, quantize="int8"))
        patched.setattr(onnx_engine, "read_export_metadata", lambda *_: whole)
        assert open_classifier(bundle / ONNX).engine == "onnxruntime"
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")
    assert open_classifier(bundle).engine == "onnxruntime"


def test_an_accelerator_or_changes_are_for_torch(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_classifier(bundle, image_size=48).engine == "torch"
    monkeypatch.setattr(opening, "may_have_accelerator", lambda: True)
    assert open_classifier(bundle).engine == "torch"


def test_a_file_of_other_weights_is_noticed(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied(bundle, tmp_path / "mixed")
    weights = bytearray((folder / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (folder / WEIGHTS).write_bytes(weights)
    record_file(folder, WEIGHTS)
    with pytest.raises(StaleExport, match=r"model\.onnx was not made of the model\.safetensors"):
        open_beside(folder, engine="onnxruntime")
    assert open_classifier(folder).engine == "torch"
    assert "torch computes instead" in caplog.text


def test_a_file_that_merges_otherwise_is_told(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The number is in the metadata; the graph is not looked at until it computes."""
    with pytest.raises(StaleExport) as caught:
        open_classifier(bundle, engine="onnxruntime", merge_tokens=8)
    assert str(caught.value) == (
        f"{bundle / ONNX} was exported with merge_tokens 0, not 8; "
        f"`vitlab export {bundle} --merge-tokens 8 --output FILE.onnx` writes such a file"
    )
    with pytest.raises(StaleExport, match="merge_tokens 0, not 8; `vitlab export MODEL --merge-to"):
        open_classifier(bundle / ONNX, merge_tokens=8)
    with pytest.raises(InputError, match="merge_tokens 2: position 'relative_bias' is about the o"):
        open_classifier(bundle, merge_tokens=2)  # torch was asked, without a word
    assert not caplog.text
    folder = copied(bundle, tmp_path / "merged")
    say_merged(folder / ONNX, 3)
    record_file(folder, ONNX)
    for model in (folder, folder / ONNX):
        found = open_classifier(model, merge_tokens=3)
        assert (found.engine, found.merge_tokens) == ("onnxruntime", 3)
    assert open_classifier(folder / ONNX).merge_tokens == 3
    assert open_classifier(folder).engine == "torch"
    assert "was exported with merge_tokens 3, not 0" in caplog.text


def say_merged(file: Path, count: int) -> None:
    import onnx

    stored = onnx.load(str(file))
    for entry in stored.metadata_props:
        if entry.key == FACTS_KEY:
            entry.value = json.dumps(json.loads(entry.value) | {"merge_tokens": count})
    onnx.save(stored, str(file))


def test_a_new_bundle_has_no_file_of_the_old_weights(bundle: Path, tmp_path: Path) -> None:
    folder = copied(bundle, tmp_path / "again")
    make_bundle(folder)
    assert not (folder / ONNX).exists()


def test_a_trained_model_gets_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_type_checks: None
) -> None:
    monkeypatch.setenv("VITLAB_ONNX", "1")
    folder = make_bundle(tmp_path / "bundle", small_model("cnn_tutorial"))
    assert write_onnx_beside(folder) == folder / ONNX
    assert open_classifier(folder).engine == "onnxruntime"


def test_training_writes_no_file_where_none_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITLAB_ONNX", "0")
    folder = make_bundle(tmp_path / "bundle")
    assert write_onnx_beside(folder) is None
    assert not (folder / ONNX).exists()


def test_a_model_that_cannot_be_exported_is_a_model_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITLAB_ONNX", "1")
    folder = make_bundle(tmp_path / "bundle")
    (folder / WEIGHTS).write_bytes(b"no weights")
    assert write_onnx_beside(folder) is None
    assert "no model.onnx beside the weights" in caplog.text


@pytest.mark.parametrize(
    ("name", "engine", "error", "message"),
    [
        ("", "onxruntime", UnknownName, "unknown engine 'onxruntime'; did you mean onnxruntime"),
        (ONNX, "torch", InputError, "is not for the engine torch; valid: onnxruntime, openvino"),
        ("gone.onnx", "auto", InputError, "gone.onnx: no such file"),
        ("", "aoti", InputError, "vitlab export .* --format aoti --output FILE.pt2"),
    ],
)
def test_a_wrong_engine_is_one_line(
    name: str, engine: str, error: type[Exception], message: str, bundle: Path
) -> None:
    with pytest.raises(error, match=message):
        open_classifier(bundle / name, engine=engine)


def test_a_missing_runtime_says_what_to_install(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtra, match=r"pip install 'vitlab\[openvino\]'"):
        open_classifier(bundle / ONNX, engine="openvino")


@pytest.mark.parametrize("length", [0, 1, 100, 4000])
def test_a_damaged_file_is_one_line(length: int, bundle: Path, tmp_path: Path) -> None:
    whole = (bundle / ONNX).read_bytes()
    file = tmp_path / "cut.onnx"
    file.write_bytes(whole[:length])
    with pytest.raises(WeightsError, match=r"cut\.onnx: ") as caught:
        open_classifier(file)
    assert "\n" not in str(caught.value)


def test_metadata_is_what_onnx_reads(bundle: Path) -> None:
    import onnx

    stored = onnx.load(str(bundle / ONNX))
    assert read_metadata(bundle / ONNX) == {p.key: p.value for p in stored.metadata_props}


def test_torch_is_not_imported(bundle: Path, photos: Path) -> None:
    code = (
        "import sys\nfrom vitlab.cli.main import run\n"
        "assert run(['predict', *sys.argv[1:]]) == 0\n"
        "print(*(name for name in ('torch', 'onnx', 'einops') if name in sys.modules))\n"
    )
    photo = str(photos / "00.png")
    for model in ("cifar10", str(bundle), str(bundle / ONNX)):
        done = subprocess.run(
            [sys.executable, "-c", code, model, photo],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == ""


def test_the_bundled_model_answers_as_torch_does(photos: Path) -> None:
    found = {}
    for engine in ("torch", "onnxruntime"):
        predictor = open_classifier("cifar10", engine=engine).predictor()
        (batch,) = predictor.stream(sorted(photos.iterdir()), top=10)
        found[engine] = [dict(p.top) for p in batch]
    for ours, theirs in zip(found["torch"], found["onnxruntime"], strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6)


class Doubles:
    """A runtime that adds up pixels, and notes who called it and how."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        self.started: set[int] = set()

    def metadata(self) -> dict[str, str]:
        return {}

    def open(self, *, threads: int, callers: int) -> Any:
        self.opened.append((threads, callers))

        def compute(images: NDArray[np.float32]) -> NDArray[np.float32]:
            self.sizes.append(len(images))
            self.threads.add(threading.get_ident())
            return images.reshape(len(images), -1).sum(axis=1, keepdims=True)

        return compute

    def start_thread(self, threads: int) -> None:
        self.started.add(threading.get_ident())


def source_of(runtime: Doubles) -> Source:
    facts = replace(FACTS, output_bytes=CACHE // 4)
    opened = OpenedOnce(runtime)
    return Source(runtime=opened, name="x", facts=facts, preprocessing=PLAIN, task="regression")


@pytest.fixture
def doubles() -> Iterator[tuple[Doubles, SessionEngine]]:
    runtime = Doubles()
    engine = SessionEngine(source_of(runtime), threads=3)
    yield runtime, engine
    engine.close()


@pytest.mark.parametrize(
    ("images", "sizes", "opened"),
    [
        (1, [1], (3, 1)),
        (2, [2], (3, 1)),
        (3, [1, 1, 1], (1, 3)),
        (4, [4], (3, 1)),
        (5, [1, 2, 2], (1, 3)),
        (13, [2, 2, 2, 2, 2, 3], (1, 3)),
    ],
)
def test_a_lone_batch_is_shared_out(
    images: int,
    sizes: list[int],
    opened: tuple[int, int],
    doubles: tuple[Doubles, SessionEngine],
) -> None:
    runtime, engine = doubles
    assert engine.batch_size == 4
    pixels = np.random.default_rng(0).integers(0, 256, (images, 5, 2, 3), dtype=np.uint8)
    found = engine.predict(pixels)
    assert_allclose(found[:, 0], pixels.reshape(images, -1).sum(axis=1) / 255, rtol=1e-5)
    assert sorted(runtime.sizes) == sizes
    assert runtime.opened == [opened]
    assert (threading.get_ident() in runtime.threads) is (opened == (3, 1))


def test_a_worker_computes_its_batch_alone(doubles: tuple[Doubles, SessionEngine]) -> None:
    runtime, engine = doubles
    engine.start_worker()
    engine.predict(np.zeros((9, 5, 2, 3), np.float32))
    assert runtime.sizes == [3, 3, 3]
    assert runtime.opened == [(1, 3)]
    assert runtime.threads == runtime.started == {threading.get_ident()}


@pytest.mark.parametrize("shape", [(0, 5, 2, 3), (1, 4, 2, 3), (1, 5, 3, 2)])
def test_images_of_another_shape_are_refused(
    shape: tuple[int, ...], doubles: tuple[Doubles, SessionEngine]
) -> None:
    with pytest.raises(InputError, match=r"valid: \[batch, 5, 2, 3\]"):
        doubles[1].predict(np.zeros(shape, np.float32))


@pytest.mark.parametrize("task", ["single-label", "multi-label", "regression"])
def test_answers_are_those_of_torch(task: Any) -> None:
    logits = np.array([[0.0, 3.0, -700.0], [1e3, 1e3, -1e3]], np.float32)
    wanted = {
        "single-label": lambda x: x.softmax(-1),
        "multi-label": lambda x: x.sigmoid(),
        "regression": lambda x: x,
    }[task](torch.from_numpy(logits).double())
    assert_allclose(objective_of(task).probabilities(logits), wanted, rtol=1e-6, atol=1e-12)


def test_a_model_beyond_memory_is_refused(
    bundle: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.machine.device.free_bytes", lambda: 100_000)
    with pytest.raises(NotEnoughMemory, match=r"model.onnx needs .* GB of memory for weights"):
        open_classifier(bundle).predictor()
    weights = (bundle / "model.safetensors").stat().st_size / 1e9
    told = rf"bundle needs {weights:.3g} GB .* 0\.0001 GB are free"
    with pytest.raises(NotEnoughMemory, match=told):
        open_classifier(bundle, engine="torch")


@pytest.mark.parametrize(("free", "images"), [(None, 16), (10**9, 16), (640, 5), (3, 1)])
def test_batches_fit_into_memory(
    free: int | None, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.machine.device.free_bytes", lambda: free)
    # Of 640 bytes, 512 may be used; two workers need 50 for every image.
    assert within_memory(16, peak_bytes=50, workers=2) == images
    if free is None:
        check_weights("any", 2**60)


def test_a_file_without_our_metadata_is_refused(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("a", "b")]
    graph = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), str(tmp_path / "foreign.onnx"))
    with pytest.raises(WeightsError, match="no labels and preprocessing in its metadata"):
        open_classifier(tmp_path / "foreign.onnx")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, compiled."""
    import jaxtyping

    file = tmp_path_factory.mktemp("compiled") / "model.pt2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        vitlab.export("cifar10", output=file, format="aoti")
    return file


@pytest.mark.slow
def test_a_compiled_package_answers_as_torch_does(
    bundle: Path, package: Path, photos: Path
) -> None:
    wanted = probabilities(bundle, photos, engine="torch")
    assert_allclose(probabilities(package, photos), wanted, **CLOSE)
    assert open_classifier(package).engine == "aoti"


def test_a_file_that_is_no_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(b"PK nothing")
    with pytest.raises(WeightsError, match="not an AOTInductor package") as caught:
        open_classifier(tmp_path / "a.pt2")
    assert "\n" not in str(caught.value)


MANY = """
import sys
from pathlib import Path
import numpy as np
from vitlab.classify.classifier import open_classifier

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

engine, model = sys.argv[1:]
computing = open_classifier(Path(model), engine=engine).predictor().engine
pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32), dtype=np.uint8)
first = computing.predict(pixels)
for _ in range(1_000):
    computing.predict(pixels)
before = resident()
for _ in range(10_000):
    last = computing.predict(pixels)
print(before, resident(), np.array_equal(first, last))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "openvino", "aoti"])
def test_ten_thousand_predictions_leave_memory_flat(
    engine: str, bundle: Path, request: pytest.FixtureRequest
) -> None:
    """After a warm-up, resident memory stays within two per cent, and answers are the same.

    In a process of its own: what other tests left behind comes and goes at any time.
    """
    pytest.importorskip(engine if engine != "aoti" else "torch")
    file = request.getfixturevalue("package") if engine == "aoti" else bundle
    words = [sys.executable, "-c", MANY, engine, str(file)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    before, after, same = done.stdout.split()
    assert int(after) <= 1.02 * int(before)
    assert same == "True"
