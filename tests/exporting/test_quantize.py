"""Smaller numbers in ONNX files: which products are in 8 bits, which stay, and what it costs."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vitlab
from exporting.exported import made
from jobs.classifiers import colours
from vitlab.classify.engines.runtimes import run_onnx
from vitlab.errors import ConfigError, InputError
from vitlab.exporting import onnx as onnx_export
from vitlab.exporting.onnx import store_in_half, write_onnx
from vitlab.exporting.program import trace
from vitlab.exporting.quantize import write_int8
from vitlab.weights.bundle import save_bundle
from vitlab.weights.exported import read_metadata

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
METADATA = {"vitlab": "what config.json says"}
BLOCKS = 2


@pytest.fixture(scope="module")
def model() -> Any:
    """Weights that 16 bits hold, with a head wide enough to be tempting."""
    found = made(depth=BLOCKS, width=64, mlp_width=128, classes=101)
    for tensor in found.state_dict().values():
        tensor.copy_(tensor.half())
    return found


@pytest.fixture(scope="module")
def exported(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import jaxtyping

    file = tmp_path_factory.mktemp("float") / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        write_onnx(trace(model, plain=True), file, METADATA)
    return file


@pytest.fixture
def file(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(exported, tmp_path / "model.onnx"))


def images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((count, 3, 32, 32)).astype(np.float32)


def operations(file: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(file)).graph.node)


def relative(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def weights_in_blocks(exported: Path) -> int:
    """Products with weights: all but the two of attention in each block."""
    return operations(exported)["MatMul"] - 2 * BLOCKS


def test_eight_bits_where_the_policy_says(exported: Path, file: Path) -> None:
    write_int8(file, METADATA)
    found = operations(file)
    assert found["MatMulInteger"] == weights_in_blocks(exported) > 4
    assert found["MatMul"] + found["Gemm"] == 2 * BLOCKS + 1  # attention, and the head
    assert found["Conv"] == 1
    assert read_metadata(file) == METADATA
    assert file.stat().st_size < 0.6 * exported.stat().st_size
    wanted, answers = run_onnx(exported)(images(5)), run_onnx(file)(images(5))
    # Seven bits of weights and eight of activations: about a hundredth in each product.
    assert 1e-4 < relative(answers, wanted) < 0.1
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_calibrated_ranges_are_fixed(exported: Path, file: Path) -> None:
    write_int8(file, METADATA, [images(3), images(7)])
    found = operations(file)
    assert found["DynamicQuantizeLinear"] == 0
    # Queries, keys and values are products of the same numbers, quantised once.
    assert found["QuantizeLinear"] >= weights_in_blocks(exported) - 2 * BLOCKS
    assert read_metadata(file) == METADATA
    wanted, answers = run_onnx(exported)(images(7)), run_onnx(file)(images(7))
    assert 1e-4 < relative(answers, wanted) < 0.1


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("fits", [False, True])
def test_weights_beside_the_file_leave_no_float_behind(
    exported: Path, calibrated: bool, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, file = exported.stat().st_size, tmp_path / "model.onnx"
    data = tmp_path / "model.onnx.data"
    onnx.save(onnx.load(str(exported)), str(file), save_as_external_data=True, location=data.name)
    assert data.stat().st_size > 0.5 * whole
    monkeypatch.setattr(onnx_export, "LARGEST", whole if fits else 1)
    write_int8(file, METADATA, [images(3), images(7)] if calibrated else None)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == (["model.onnx"] if fits else ["model.onnx", "model.onnx.data"])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 0.6 * whole
    assert read_metadata(file) == METADATA
    wanted, answers = run_onnx(exported)(images(7)), run_onnx(file)(images(7))
    assert 1e-4 < relative(answers, wanted) < 0.1


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.usefixtures("no_type_checks")
def test_a_large_model_is_published_in_eight_bits_alone(
    model: Any, calibrated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum(tensor.nbytes for tensor in model.parameters())
    monkeypatch.setattr(onnx_export, "LARGEST", 0.6 * whole)
    folder = colours(tmp_path / "photos", 2) if calibrated else None
    file = tmp_path / "model.onnx"
    found = vitlab.export(model, output=file, quantize="int8", calibrate=folder)
    assert found.files == (file,)
    assert found.bytes < 0.6 * whole
    assert [path for path in tmp_path.iterdir() if path.is_file()] == [file]


def test_what_has_nothing_to_quantise_is_refused(tmp_path: Path) -> None:
    cnn = vitlab.create_model("cnn_tutorial")
    preparation = vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    save_bundle(
        tmp_path / "cnn",
        cnn,
        preprocessing=preparation,
        labels=tuple("abcdefghij"),
        metrics={},
        provenance={},
    )
    with pytest.raises(ConfigError, match="int8 is for products of tokens and weights"):
        vitlab.export(tmp_path / "cnn", output=tmp_path / "a.onnx", quantize="int8")
    assert [path.name for path in tmp_path.iterdir()] == ["cnn"]


def test_an_image_that_cannot_calibrate_is_named(model: Any, tmp_path: Path) -> None:
    folder = colours(tmp_path / "photos", 2)
    (folder / "broken.png").write_bytes(b"no picture")
    with pytest.raises(InputError) as caught:
        vitlab.export(model, output=tmp_path / "a.onnx", quantize="int8", calibrate=folder)
    assert str(caught.value).startswith(f"{folder / 'broken.png'}: not an image of a known format")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("exact", [False, True])
def test_sixteen_bits_that_hold_the_weights_change_nothing(exported: Path, exact: bool) -> None:
    import onnx_ir

    half = exported.with_name(f"half-{exact}.onnx")
    graph = onnx_ir.load(str(exported))
    store_in_half(graph, exact=exact)
    onnx_ir.save(graph, str(half))
    assert half.stat().st_size < 0.65 * exported.stat().st_size
    assert np.array_equal(run_onnx(half)(images(3)), run_onnx(exported)(images(3)))


@pytest.mark.parametrize(
    ("number", "exact", "stored"), [(1e5, False, 1), (1 / 3, False, 2), (1 / 3, True, 1)]
)
def test_what_sixteen_bits_cannot_hold_stays(number: float, exact: bool, stored: int) -> None:
    import onnx_ir as ir
    from onnx import TensorProto, helper, numpy_helper

    one, other = np.ones((32, 32), np.float32), np.full((32, 32), number, np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [32, 32]) for n in ("a", "c")]
    nodes = [helper.make_node("Mul", ["a", "w"], ["b"]), helper.make_node("Mul", ["b", "v"], ["c"])]
    weights = [numpy_helper.from_array(one, "w"), numpy_helper.from_array(other, "v")]
    graph = ir.from_proto(
        helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights))
    )
    store_in_half(graph, exact=exact)
    kinds = [value.dtype for value in graph.graph.initializers.values()]
    assert kinds.count(ir.DataType.FLOAT16) == stored
    assert len(kinds) == 2
