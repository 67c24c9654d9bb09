"""Every damage is one clear line that names the file and what was found in it."""

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
from safetensors.torch import save_file
from torch import Tensor

import vitlab
from reference.random_weights import randomise
from vitlab.errors import WeightsError

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def model() -> vitlab.VisionTransformer:
    config = vitlab.ViTConfig(
        width=32,
        depth=2,
        heads=2,
        mlp_width=48,
        patch_size=8,
        image_size=24,
        classes=5,
        gelu="tanh",
    )
    model = vitlab.VisionTransformer(config)
    randomise(model)
    return model


@pytest.fixture
def npz(model: vitlab.VisionTransformer, tmp_path: Path) -> Path:
    vitlab.save_weights(model, tmp_path / "a.npz", format="google")
    return tmp_path / "a.npz"


@pytest.fixture
def timm(model: vitlab.VisionTransformer, tmp_path: Path) -> State:
    vitlab.save_weights(model, tmp_path / "a.pth", format="timm")
    state: State = torch.load(tmp_path / "a.pth", weights_only=True)
    return state


def refused(path: Path, message: str, **changes: Any) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        vitlab.load_weights(path, **changes)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path)) or path.is_dir(), text


@pytest.mark.parametrize("part", [0.999, 0.5, 0.01])
def test_truncated_npz(part: float, npz: Path) -> None:
    content = npz.read_bytes()
    npz.write_bytes(content[: int(len(content) * part)])
    refused(npz, "truncated or damaged")


def test_one_wrong_byte_in_an_npz(npz: Path) -> None:
    content = bytearray(npz.read_bytes())
    content[len(content) // 2] ^= 255
    npz.write_bytes(content)
    refused(npz, "truncated or damaged.*CRC")


def test_npz_with_pickled_objects(npz: Path) -> None:
    with np.load(npz) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(npz, **arrays | {"extra": np.array([{"a": 1}], dtype=object)})
    refused(npz, "'extra' holds pickled Python objects")


def test_npz_member_that_is_no_array(npz: Path) -> None:
    with zipfile.ZipFile(npz, "a") as archive:
        archive.writestr("evil.npy", pickle.dumps([1, 2]))
    refused(npz, "'evil' is not a NumPy array")


def test_npz_that_promises_more_than_it_holds(npz: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    )
    with zipfile.ZipFile(npz, "a") as archive:
        archive.writestr("vast.npy", header.getvalue())
    refused(npz, "'vast' is shorter than its shape")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"these are no weights, only words", "it is text"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (bytes(range(200, 256)), "starts with the bytes c8 c9"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "a header of 1152921504606846976 bytes"),
        ((4).to_bytes(8, "little") + b"{ab}", "invalid JSON in header"),
        (b"PK\x05\x06" + b"\0" * 18, "starts with the bytes"),
    ],
)
def test_files_that_hold_something_else(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    refused(path, message)


def header(entries: dict[str, Any], size: int) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * size


@pytest.mark.parametrize(
    ("entries", "size", "message"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 4, "truncated"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 9, "damaged"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, 8, "invalid shape"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, 8, "damaged header"),
        ({"a": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}}, 8, "unknown variant `F31`"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, 12, "invalid offset"),
        ({"a": {"shape": [2]}}, 8, "missing field `dtype`"),
        ({"a": 3}, 8, "invalid type: integer `3`"),
        ({}, 0, "holds no tensors"),
    ],
)
def test_damaged_safetensors(
    entries: dict[str, Any], size: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(header(entries, size))
    refused(path, message)


@pytest.mark.parametrize("part", [0.99, 0.3, 0.001])
def test_truncated_safetensors(part: float, timm: State, tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    save_file(timm, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    refused(path, "truncated")


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return eval, ("1/0",)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_never_run(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"model": Evil()}, path, _use_new_zipfile_serialization=zipped)
    refused(path, "holds Python objects besides tensors")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", [0.9, 0.2])
def test_truncated_pth(part: float, zipped: bool, timm: State, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save(timm, path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    refused(path, r"a.pth: (truncated|not a readable|holds Python)")


def test_pth_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"epoch": 3, "lr": 0.1}, path)
    refused(path, "no dictionary of tensors under 'epoch', 'lr'")
    torch.save([torch.zeros(3)], path)
    refused(path, "holds a list")


def test_missing_places(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.npz", "no such file or folder")
    refused(tmp_path, "a folder needs model.safetensors.*found: none")
    (tmp_path / "a.pth").touch()
    (tmp_path / "b.npz").touch()
    refused(tmp_path, "found: a.pth, b.npz")


def test_shards_stay_in_their_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    refused(tmp_path, "is not a file beside the index")
    index.write_text("[" * 100_000)
    refused(tmp_path, "nested more than 100 levels deep")


def remove(state: State, name: str) -> None:
    del state[name]


TENSORS = [
    (lambda s: remove(s, "blocks.1.norm1.weight"), r"'blocks.1.norm1.weight' \(32,\) is missing"),
    (lambda s: remove(s, "blocks.0.attn.qkv.bias"), r"'blocks.0.attn.qkv.bias' \(96,\) is missing"),
    (lambda s: remove(s, "blocks.0.mlp.fc1.weight"), r"'blocks.0.mlp.fc1.weight' \(48, 32\) is m"),
    (lambda s: remove(s, "cls_token"), r"'cls_token' \(1, 1, 32\) is missing"),
    (lambda s: remove(s, "pos_embed"), "position table is missing"),
    (lambda s: remove(s, "patch_embed.proj.weight"), "'patch_embed.proj.weight' is missing"),
    (lambda s: remove(s, "norm.bias"), r"'norm.bias' \(32,\) is missing"),
    (lambda s: remove(s, "head.weight"), r"'head.weight' \(5, 32\) is missing"),
    (lambda s: s.update(other=torch.zeros(2, 3)), r"'other' \(2, 3\) is not used"),
    (lambda s: s.update({"blocks.0.attn.x": torch.zeros(2)}), "'blocks.0.attn.x'.*not used"),
    (lambda s: s.update({"head.bias": torch.zeros(6)}), r"'head.bias' has shape \(6,\).*\(5,\)"),
    (
        lambda s: s.update({"blocks.1.mlp.fc2.weight": torch.zeros(48, 32)}),
        r"'blocks.1.mlp.fc2.weight' has shape \(48, 32\), expected \(32, 48\)",
    ),
    (lambda s: s.update({"patch_embed.proj.weight": torch.zeros(3)}), r"shape \(3,\), expected 4"),
]


@pytest.mark.parametrize(("change", "message"), TENSORS, ids=[message for _, message in TENSORS])
def test_missing_extra_and_misshapen_tensors(
    change: Callable[[State], None], message: str, timm: State, tmp_path: Path
) -> None:
    change(timm)
    path = tmp_path / "b.safetensors"
    save_file(timm, path)
    refused(path, message, heads=2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blocks.0.attn.rel_pos.mlp.fc1.weight", "relative positions are an MLP"),
        ("blocks.0.attns.0.norm.weight", "parallel branches"),
        ("blocks.0.in_proj.weight", "side by side"),
        ("blocks.0.attn.lambda_k1", "differential attention"),
        ("blocks.0.attn.proj_l.weight", "CaiT"),
        ("embeds.proj.weight", "naflexvit"),
        ("patch_embed.backbone.conv1.0.weight", "no BiT-style ResNet"),
        ("blocks.0.proj.weight", "a Hiera"),
        ("stages.0.blocks.0.conv_dw.weight", "ConvNeXt"),
        ("layer1.0.conv1.weight", "ResNet"),
        ("visual.attnpool.positional_embedding", "CLIP with a ResNet"),
        ("visual.trunk.stages.0.blocks.0.norm.weight", "a network of convolutions or of stages"),
        ("layers.0.blocks.0.attn.relative_position_bias_table", "Swin"),
        ("blocks.0.attn.rel_pos_h", "SAM"),
        ("mlp_head.0.weight", "early release"),
        ("transformer.layers.0.0.fn.to_qkv.weight", "early release"),
        ("Transformer/encoderblock/LayerNorm_0/scale", "scanned"),
        ("swin.embeddings.norm.weight", "a Swin Transformer of Hugging Face"),
        ("yolos.encoder.layer.0.layernorm_before.weight", "another transformer of Hugging Face"),
    ],
)
def test_relatives_are_refused_by_name(
    name: str, message: str, timm: State, tmp_path: Path
) -> None:
    path = tmp_path / "b.safetensors"
    save_file(timm | {name: torch.zeros(1)}, path)
    refused(path, message)


def test_unknown_tensors(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(3), "fc.bias": torch.zeros(1)}, tmp_path / "a.st")
    refused(tmp_path / "a.st", r"2 tensors \(conv1.weight, fc.bias\) of no known format")


def test_heads_that_do_not_follow(timm: State, tmp_path: Path) -> None:
    save_file(timm, tmp_path / "b.safetensors")
    refused(tmp_path / "b.safetensors", r"pass heads=\.\.\.")
    refused(tmp_path / "b.safetensors", "heads=5 does not divide", heads=5)
    refused(tmp_path / "b.safetensors", "width=64 contradicts", heads=2, width=64)
    refused(tmp_path / "b.safetensors", "qk_norm=True contradicts", heads=2, qk_norm=True)
    refused(tmp_path / "b.safetensors", "position='rope' contradicts", heads=2, position="rope")


def test_the_name_does_not_matter(timm: State, npz: Path, tmp_path: Path) -> None:
    save_file(timm, tmp_path / "odd.pth")
    assert vitlab.load_weights(tmp_path / "odd.pth", heads=2).source.format == "timm"
    npz.rename(tmp_path / "odd.safetensors")
    assert vitlab.load_weights(tmp_path / "odd.safetensors").source.format == "google"
