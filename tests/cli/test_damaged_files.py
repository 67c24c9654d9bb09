"""Damaged and hostile files are the user's mistake: one line and exit code 2."""

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import Command
from weights.bundles import make_bundle

DEEP_LIST = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
DEEP = (DEEP_LIST, DEEP_OBJECT, "[" * 500 + "]" * 500)
"""Deeper than Python's own limit, and deeper than ours alone."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path / "home"))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.new("RGB", (32, 32)).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def safetensors(header: str, numbers: bytes = bytes(8)) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + numbers


@pytest.mark.parametrize(
    "entry",
    [
        '"shape": [Infinity], "data_offsets": [0, 8]',
        '"shape": [1e999], "data_offsets": [0, 8]',
        '"shape": [2], "data_offsets": [0, Infinity]',
        '"shape": [2], "data_offsets": [-Infinity, 8]',
        '"shape": [NaN], "data_offsets": [0, 8]',
        '"shape": [2.5], "data_offsets": [0, 8]',
        '"shape": ["2"], "data_offsets": [0, 8]',
        '"shape": [true, 2], "data_offsets": [0, 8]',
        f'"shape": {DEEP_LIST}, "data_offsets": [0, 8]',
    ],
    ids=lambda entry: entry[:40],
)
def test_safetensors(entry: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors('{"a": {"dtype": "F32", ' + entry + "}}"))
    assert command("info", path).mistake.startswith(f"{path}: ")


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)


def archive(inside: bytes, *, name: str = "a.npy", comment: str = "", method: int = 0) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr(
            "whole.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}")
        )
        entry = zipfile.ZipInfo("x")
        entry.filename = name
        written.writestr(entry, inside, compress_type=method)
        written.comment = comment.encode()
    return file.getvalue()


def relabelled(content: bytes, method: int) -> bytes:
    """The archive with another compression stated than it has."""
    for start, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = content.rfind(start) + at
        content = content[:place] + method.to_bytes(2, "little") + content[place + 2 :]
    return content


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
NPZ = {
    "an open bracket": archive(npy("{'descr': '<f4', 'shape': (2,")),
    "open brackets": archive(npy("(" * 5000)),
    "LZMA that is none": relabelled(archive(npy(GOOD)), zipfile.ZIP_LZMA),
    "bzip2 that is none": relabelled(archive(npy(GOOD)), zipfile.ZIP_BZIP2),
    "deflate that is none": relabelled(archive(npy(GOOD)), zipfile.ZIP_DEFLATED),
    "an unknown compression": relabelled(archive(npy(GOOD)), 99),
    "no name": archive(npy(GOOD), name=""),
    "a nested comment": archive(npy(GOOD), comment="vitlab " + "[" * 60_000),
    "a negative length": archive(npy(GOOD.replace("(2,)", "(-2,)"))),
}


@pytest.mark.parametrize("content", NPZ.values(), ids=NPZ)
def test_npz(content: bytes, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    assert command("info", path).mistake.startswith(f"{path}: ")


REBUILD = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02K\x03K\x04K\x05NtR."
PICKLES = {
    "an empty stack": b"\x80\x02.",
    "a tensor of a number": REBUILD,
    "a number as a place": b"\x80\x02K\x01Q.",
    "a key of nothing": b"\x80\x02}K\x01s.",
    "a text without end": b"\x80\x02X\xff\0\0\0abc",
    "a name without end": b"\x80\x02ctorch",
    "an unknown number": b"\x80\x02h\x07.",
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("content", PICKLES.values(), ids=PICKLES)
def test_pth(content: bytes, zipped: bool, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(content)
    if zipped:
        torch.save({}, path)
        with zipfile.ZipFile(path) as whole:
            members = {name: whole.read(name) for name in whole.namelist()}
        with zipfile.ZipFile(path, "w") as changed:
            for name, inside in members.items():
                changed.writestr(name, content if name.endswith("data.pkl") else inside)
    assert command("info", path).mistake.startswith(f"{path}: ")


def test_pth_whose_dictionary_contains_itself(tmp_path: Path, command: Command) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    torch.save(content, tmp_path / "a.pth")
    assert "no dictionary of tensors" in command("info", tmp_path / "a.pth").mistake


@pytest.mark.parametrize("text", DEEP, ids=["list", "object", "500"])
def test_nested_labels(text: str, tmp_path: Path, image: Path, command: Command) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    (tmp_path / "labels.json").write_text(text)
    found = command("predict", bundle, image, "--labels", tmp_path / "labels.json")
    assert "nested more than 100 levels" in found.mistake


@pytest.mark.parametrize(
    "text", [f"a = {DEEP_LIST}", "[" + "a." * 5000 + "a]\nb = 1", "seeds = 1" + "0" * 400]
)
def test_toml(text: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.toml").write_text(text)
    found = command("experiment", tmp_path / "a.toml", "--out", tmp_path / "out")
    assert found.mistake.startswith(f"{tmp_path / 'a.toml'}: ")
    assert len(found.mistake) < 1000


@pytest.mark.parametrize("value", [DEEP_LIST, "1" + "0" * 400, "1e999", "NaN"])
def test_settings(value: str, tmp_path: Path, command: Command) -> None:
    words = ("--set", f"optimizer.lr={value}", "--out", tmp_path / "run")
    assert "optimizer.lr" in command("train", "default", "--data", "sample", *words).mistake


FEATURES = {
    "cut": lambda content: content[: len(content) // 2],
    "cut at the end": lambda content: content[:-30],
    "empty": lambda content: b"",
    "other numbers": lambda content: content[:40] + b"\xff" * 400 + content[440:],
    "ones at the end": lambda content: content[:-40] + b"\xff" * 40,
    "an unknown compression": lambda content: relabelled(content, 99),
    "LZMA that is none": lambda content: relabelled(content, zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("change", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("name", ["f.npz", "f.parquet"])
def test_features(name: str, change: Any, tmp_path: Path, image: Path, command: Command) -> None:
    bundle, path = make_bundle(tmp_path / "bundle"), tmp_path / name
    assert command("features", bundle, image, "--output", path).code == 0
    path.write_bytes(change(path.read_bytes()))
    assert str(path) in command("similar", path, image, "--model", bundle).mistake


@pytest.mark.parametrize("value", [DEEP_OBJECT, '{"a":1}', "[1]", "1", "null"])
def test_metadata_of_features(value: str, tmp_path: Path, image: Path, command: Command) -> None:
    bundle, path = make_bundle(tmp_path / "bundle"), tmp_path / "f.npz"
    assert command("features", bundle, image, "--output", path).code == 0
    arrays = dict(np.load(path)) | {"metadata": np.array(value)}
    np.savez(path, **arrays)
    assert str(path) in command("similar", path, image, "--model", bundle).mistake


@pytest.mark.parametrize("length", [0, 3, 5, 7, 15])
def test_a_truncated_idx_header(length: int, tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "home" / "fashion-mnist"
    folder.mkdir(parents=True)
    whole = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(784)
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            content = gzip.compress(whole[:length])
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(content)
    bundle = make_bundle(tmp_path / "bundle")
    found = command("features", bundle, "fashion-mnist", "--output", tmp_path / "f.npz")
    assert "train-images-idx3-ubyte.gz is not an idx file" in found.mistake


RECORDS = (
    b'{"path": 5, "label": "a", "probability": 1.0, "top": [], "error": null}\n',
    b'{"path": "a", "label": ["a"], "probability": 1.0, "top": [], "error": null}\n',
    b'{"path": "a", "label": "a", "probability": "1", "top": [], "error": null}\n',
    b'{"path": "a", "label": "a", "probability": 1.0, "top": [["a", {}]], "error": null}\n',
    b"[" * 100_000 + b"\n",
    b"\xff\xfe\n",
)


@pytest.mark.parametrize("line", RECORDS, ids=lambda line: line[:40].decode(errors="replace"))
def test_stored_predictions(line: bytes, tmp_path: Path, image: Path, command: Command) -> None:
    bundle, path = make_bundle(tmp_path / "bundle"), tmp_path / "p.jsonl"
    words = ("predict", bundle, image, image, "--output", path)
    assert command(*words).code == 0
    path.write_bytes(line + path.read_bytes())
    assert "--overwrite starts anew" in command(*words).mistake


@pytest.mark.parametrize("text", [*DEEP, "[]", "1", "\ud800"], ids=str.__len__)
def test_the_job_of_predictions(text: str, tmp_path: Path, image: Path, command: Command) -> None:
    bundle, path = make_bundle(tmp_path / "bundle"), tmp_path / "p.csv"
    words = ("predict", bundle, image, image, "--output", path)
    assert command(*words).code == 0
    job = path.with_name("p.csv.job.json")
    job.write_bytes(text.encode(errors="surrogatepass"))
    assert command(*words).mistake.startswith(f"{job}: not a job")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patch_size", 1e300),
        ("num_attention_heads", {}),
        ("image_size", 1.5),
        ("hidden_dropout_prob", 10**400),
        ("layer_norm_eps", "small"),
    ],
)
def test_a_config_of_transformers(
    name: str, value: object, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "hf"
    bundle = make_bundle(tmp_path / "bundle")
    assert command("convert", bundle, folder, "--format", "huggingface").code == 0
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt"})
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: value}))
    assert str(config) in command("info", folder).mistake
