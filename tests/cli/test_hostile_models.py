"""Exported models that run code, or fail when they are run, by the command line."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import Command
from vitlab.weights.bundle import read_bundle_config
from weights.bundles import make_bundle

FACTS = {
    "weights": None,
    "preprocess_inside": False,
    "quantize": None,
    "zero_head": False,
    "batch": None,
    "output_bytes": 1,
    "peak_bytes": 1,
    "weight_bytes": 1,
}
CODE = "data/aotinductor/model/"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.new("RGB", (32, 32), "red").save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


@pytest.fixture
def metadata(tmp_path: Path) -> dict[str, str]:
    """As `vitlab export` writes it."""
    config = read_bundle_config(make_bundle(tmp_path / "bundle"))
    return {"vitlab": json.dumps(config), "vitlab_export": json.dumps(FACTS)}


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (str(self.marker), "w")


def archive(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive as torch writes it, whose own folder has the name of the file."""
    frame = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in {**parts, **frame}.items():
            file.writestr(name if name.startswith("/") else f"{path.stem}/{name}", content)
    return path


def packed(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name",
    ["data/sample_inputs/model.pt", "data/weights/weight_0", "data/constants/custom_obj_0"]
    + [f"{CODE}weights.pt", f"{CODE}deeper/data.pkl", "extra/vitlab", "data.pkl"],
)
@pytest.mark.parametrize("pack", [packed, pickle.dumps])
def test_nothing_is_unpickled(
    command: Command, image: Path, tmp_path: Path, name: str, pack: Callable[[object], bytes]
) -> None:
    marker = tmp_path / "ran"
    parts = {"models/model.json": b"{}", f"{CODE}a.so": b"\x7fELF", name: pack(Payload(marker))}
    told = command("predict", archive(tmp_path / "evil.pt2", parts), image).mistake
    assert "evil.pt2: not an AOTInductor package (it holds " in told
    assert "could run code" in told
    assert not marker.exists()


def test_an_archive_of_torch_export_is_not_loaded(
    command: Command, image: Path, tmp_path: Path
) -> None:
    """A whole one, of which only the example input was exchanged."""
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(5, 2),))
    torch.export.save(program, str(tmp_path / "good.pt2"))
    marker = tmp_path / "ran"
    with zipfile.ZipFile(tmp_path / "good.pt2") as good:
        parts = {part.partition("/")[2]: good.read(part) for part in good.namelist()}
    parts["data/sample_inputs/model.pt"] = packed(Payload(marker))
    told = command("predict", archive(tmp_path / "evil.pt2", parts), image).mistake
    assert "not an AOTInductor package" in told
    assert not marker.exists()


def test_machine_code_of_others_is_not_run(
    command: Command,
    image: Path,
    metadata: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    loaded = []
    monkeypatch.setattr(
        "torch._inductor.package.package.load_package", lambda path, **_: loaded.append(path)
    )
    parts = {f"{CODE}a.so": b"\x7fELF", f"{CODE}a_metadata.json": json.dumps(metadata).encode()}
    path = archive(tmp_path / "foreign.pt2", parts)
    told = command("predict", path, image).mistake
    assert "machine code that `vitlab export` did not compile for this user" in told
    assert "VITLAB_RUN_CODE=1" in told
    assert not loaded
    monkeypatch.setenv("VITLAB_RUN_CODE", "1")
    command("predict", path, image)
    assert loaded
    monkeypatch.setenv("VITLAB_RUN_CODE", "yes")
    assert "VITLAB_RUN_CODE is 'yes'; valid: 0 or 1" in command("predict", path, image).mistake


def test_packages_of_another_layout_are_refused(
    command: Command,
    image: Path,
    metadata: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITLAB_RUN_CODE", "1")
    path = tmp_path / "a.pt2"
    library, said = {f"{CODE}a.so": b"\x7fELF"}, json.dumps(metadata).encode()

    def told(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> str:
        return command("predict", archive(path, parts, compression), image).mistake

    # torch would compile this with the options that lie beside it.
    source = {f"{CODE}a.cpp": b"int main;", f"{CODE}a_compile_flags.json": b"{}"}
    assert "(0 compiled models)" in told(source)
    assert "(2 compiled models)" in told(library | {f"{CODE}b.so": b"\x7fELF"})
    assert "a part named 'a/../b'" in told(library | {"../b": b""})
    assert "a part named '/b'" in told(library | {"/b": b""})
    assert "is compressed" in told({f"{CODE}a.so": bytes(9_999_999)}, zipfile.ZIP_DEFLATED)
    many = {f"{CODE}{number}.json": b"{}" for number in range(1_001)}
    assert "1,005 parts" in told(library | many)
    assert "no labels and preprocessing in its metadata" in told(library)
    for wrong in (b"[1]", b'{"vitlab": 1}', b"[" * 100_000, b"\xff", b"{"):
        assert "not an AOTInductor package" in told(library | {f"{CODE}a_metadata.json": wrong})
    path.write_bytes(said)
    assert "not an AOTInductor package (File is not a zip file)" in (
        command("predict", path, image).mistake
    )


def onnx_file(path: Path, metadata: dict[str, str], nodes: list[Any], weights: list[Any]) -> Path:
    """A file that says all that it must, whatever it computes."""
    onnx = pytest.importorskip("onnx")
    given = onnx.helper.make_tensor_value_info("images", 1, ["batch", 3, 32, 32])
    logits = onnx.helper.make_tensor_value_info("logits", 1, None)
    graph = onnx.helper.make_graph(nodes, "graph", [given], [logits], weights)
    opset = onnx.helper.make_opsetid("", 20)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    onnx.helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("target", [[0, 7], [-1, 3, 5], [3072], [-1, 3072]])
def test_an_onnx_file_that_fails_when_it_is_run_is_one_line(
    command: Command,
    image: Path,
    metadata: dict[str, str],
    tmp_path: Path,
    engine: str,
    target: list[int],
) -> None:
    pytest.importorskip(engine)
    onnx = pytest.importorskip("onnx")
    shape = onnx.numpy_helper.from_array(np.array(target, np.int64), "shape")
    nodes = [onnx.helper.make_node("Reshape", ["images", "shape"], ["logits"])]
    path = onnx_file(tmp_path / "model.onnx", metadata, nodes, [shape])
    told = command("predict", path, image, "--engine", engine).mistake
    assert "model.onnx: " in told


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_weights_of_an_onnx_file_come_from_its_own_folder(
    command: Command, image: Path, metadata: dict[str, str], tmp_path: Path, engine: str
) -> None:
    pytest.importorskip(engine)
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret").write_bytes(np.ones(3, np.float32).tobytes())
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link").symlink_to(tmp_path / "secret")
    for place in ("../secret", str(tmp_path / "secret"), "link"):
        tensor = onnx.TensorProto(
            name="w", data_type=1, dims=[3], data_location=onnx.TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value=place)
        nodes = [
            onnx.helper.make_node("GlobalAveragePool", ["images"], ["mean"]),
            onnx.helper.make_node("Flatten", ["mean"], ["flat"]),
            onnx.helper.make_node("Add", ["flat", "w"], ["logits"]),
        ]
        path = onnx_file(tmp_path / "inner" / "model.onnx", metadata, nodes, [tensor])
        told = command("predict", path, image, "--engine", engine).mistake
        assert "model.onnx: cannot be loaded" in told
