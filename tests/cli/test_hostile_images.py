"""Images that start programs, or that declare more than memory holds, by the command line."""

import ast
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from command import Command, Outcome
from vitlab.images.find import SUFFIXES
from vitlab.images.preprocessing import Preprocessing
from weights.bundles import make_bundle, small_model

ROOT = Path(__file__).resolve().parents[2]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n%%EOF\n"
PSD = b"8BPS\0\1" + bytes(6) + b"\0\3\0\0\0\x20\0\0\0\x20\0\x08\0\3" + bytes(4096)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `gs` that leaves a file behind where it is started."""
    (tmp_path / "bin").mkdir()
    program, marker = tmp_path / "bin" / "gs", tmp_path / "started"
    program.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    # Pillow looks for it once in a process.
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    return marker


def refused(outcome: Outcome) -> str:
    assert outcome.code != 0, outcome
    assert "Traceback" not in outcome.err
    return outcome.out + outcome.err


@pytest.mark.parametrize("name", ["cat.jpg", "cat.png", "cat.eps", "cat.tif", "cat"])
def test_an_eps_file_starts_no_program(
    command: Command, bundle: Path, ghostscript: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(EPS)
    told = refused(command("predict", bundle, tmp_path / name))
    assert "an EPS or PostScript document, not an image that can be read; valid: JPEG, PNG" in told
    assert not ghostscript.exists()


def test_neither_checking_nor_training_starts_one(
    command: Command, ghostscript: Path, tmp_path: Path
) -> None:
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "data" / label / f"{number}.jpg").write_bytes(EPS + bytes([number]))
    command("data", "check", tmp_path / "data")
    told = command("train", "default", "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert "an EPS or PostScript document" in told.mistake
    assert not ghostscript.exists()


def test_other_formats_are_named(command: Command, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(PSD)
    assert "a Photoshop (PSD) document" in refused(command("predict", bundle, tmp_path / "cat.jpg"))
    Image.new("RGB", (32, 32)).save(tmp_path / "cat.png", "TGA")
    told = refused(command("predict", bundle, tmp_path / "cat.png"))
    assert "not an image of a known format; valid: " in told


@pytest.mark.parametrize(
    ("format", "ending"),
    [("JPEG", "jpe"), ("PNG", "png"), ("GIF", "gif"), ("BMP", "bmp"), ("PPM", "pnm")]
    + [("TIFF", "tiff"), ("WEBP", "webp"), ("AVIF", "avif"), ("MPO", "mpo")],
)
def test_every_format_that_is_found_is_read(
    command: Command, bundle: Path, tmp_path: Path, format: str, ending: str
) -> None:
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "photos" / f"a.{ending}", format)
    assert f".{ending}" in SUFFIXES
    assert command("predict", bundle, tmp_path / "photos").code == 0


def test_images_are_opened_in_one_place() -> None:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            called = ast.unparse(node.func)
            if called in ("Image.open", "PIL.Image.open") or called.endswith("imread"):
                found.append((path.name, ast.unparse(node)))
    assert found == [
        ("open.py", "Image.open(source, formats=formats)"),
        ("open.py", "Image.open(source, formats=(HEIF,))"),
    ]


def sparse_array(path: Path, shape: tuple[int, ...], kind: str = "|u1") -> None:
    """A `.npy` file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        header = {"descr": kind, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(kind).itemsize)


@pytest.mark.parametrize("shape", [(40_000, 50_000, 3), (3, 40_000, 50_000), (1_000, 1_001, 6_000)])
def test_an_array_is_measured_before_it_is_read(
    command: Command, bundle: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    sparse_array(tmp_path / "large.npy", shape)
    told = refused(command("predict", bundle, tmp_path / "large.npy"))
    assert "pixels; valid: at most 89,478,485 in all" in told


def test_large_arrays_in_a_folder_are_not_read_either(command: Command, tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(3):
            width = 50_000 + 10 * number + ord(label)  # files of equal size are compared
            sparse_array(tmp_path / label / f"{number}.npy", (40_000, width, 3), "<u2")
    outcome = command("data", "check", tmp_path)
    assert "pixels" in outcome.out + outcome.err


def test_an_array_holds_numbers_and_all_of_them(
    command: Command, bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([[["x"] * 3]]))
    assert "valid: numbers, such as uint8" in refused(command("predict", bundle, path))
    np.save(path, np.array([[[{}] * 3]], dtype=object), allow_pickle=True)
    refused(command("predict", bundle, path))
    np.save(path, np.zeros((32, 32, 3), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    refused(command("predict", bundle, path))
    np.save(path, np.asfortranarray(np.zeros((32, 32, 3), np.uint8)))
    assert command("predict", bundle, path).code == 0


def tiff(path: Path, **tags: int | tuple[int, ...]) -> None:
    """A TIFF of nothing but a header."""
    names = {"width": 256, "height": 257, "bits": 258, "compression": 259, "photometric": 262}
    names |= {"strips": 273, "samples": 277, "rows": 278, "strip_bytes": 279, "planar": 284}
    names |= {"tile_width": 322, "tile_height": 323, "tiles": 324, "tile_bytes": 325}
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    for name, value in tags.items():
        directory[names[name]] = value
    path.write_bytes(b"II*\0\x08\0\0\0" + directory.tobytes(8) + bytes(64))


PLANES = 40
WIDE = {"bits": 8, "compression": 1, "photometric": 1, "samples": PLANES, "planar": 2}


@pytest.fixture
def of_planes(tmp_path: Path) -> Path:
    """A bundle of a model that reads as many bands."""
    half = (0.5,) * PLANES
    prepared = Preprocessing(size=(32, 32), mean=half, std=half)
    model = small_model(channels=PLANES)
    return make_bundle(tmp_path / "bundle", model, preprocessing=prepared)


def test_planes_of_a_tiff_are_counted_together(
    command: Command, of_planes: Path, tmp_path: Path
) -> None:
    strips = {"strips": (8,) * PLANES, "strip_bytes": (64,) * PLANES}
    tiff(tmp_path / "planes.tif", width=9_000, height=9_000, rows=9_000, **strips, **WIDE)
    told = refused(command("predict", of_planes, tmp_path / "planes.tif"))
    assert "9000 x 9000 x 40 pixels; valid: at most" in told


def test_tiles_of_a_tiff_are_measured(command: Command, of_planes: Path, tmp_path: Path) -> None:
    tiles = {"tiles": (8,) * PLANES, "tile_bytes": (64,) * PLANES}
    sizes = {"width": 32, "height": 32, "tile_width": 65_536, "tile_height": 65_536}
    tiff(tmp_path / "tiles.tif", **sizes, **tiles, **WIDE)
    told = refused(command("predict", of_planes, tmp_path / "tiles.tif"))
    assert "32 x 32 x 40 in tiles of 65536 x 65536 pixels; valid: at most" in told
    tiff(tmp_path / "few.tif", **sizes | {"tile_width": 16, "tile_height": 16}, **tiles, **WIDE)
    told = refused(command("predict", of_planes, tmp_path / "few.tif"))
    assert "40 strips or tiles; valid: 160, as it declares" in told
