"""iPhone photographs (HEIC) are read like any other image; without the decoder they are named."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.heic_files import heic, photographs, pillow_heif
from data.picture_files import encoded, picture
from vitlab.data.check.check import check_folder
from vitlab.data.images import one_of
from vitlab.errors import InputError, TooLarge
from vitlab.images.decode import Decoder
from vitlab.images.open import MissingDecoder, limited, open_image
from vitlab.images.preprocessing import ORIENTATION, Preprocessing, read_bands

HALF = (0.5, 0.5, 0.5)
PREPARED = Preprocessing(size=(48, 40), mean=HALF, std=HALF)


@pytest.fixture
def without_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)


def test_pixels_are_those_of_the_photograph(tmp_path: Path) -> None:
    path = heic(tmp_path / "a.heic", 3)
    with open_image(path) as image:
        assert (image.format, image.size) == ("HEIF", (96, 64))
        found = np.asarray(image.convert("RGB"), np.int16)
    # Lossless but for the conversion to YCbCr with fewer colour samples.
    assert np.abs(found - np.asarray(picture(3, 64, 96), np.int16)).mean() < 5


def test_a_name_that_lies_is_no_obstacle(tmp_path: Path) -> None:
    path = heic(tmp_path / "a.heic", 3).rename(tmp_path / "a.jpg")
    assert read_bands(path, 3, None)[0].size == (96, 64)
    check = check_folder(photographs(tmp_path / "set", heics=0, others=3))
    assert "wrong_ending" not in {found.name for found in check.findings}
    heic(tmp_path / "set" / "a" / "x.heic", 4).rename(tmp_path / "set" / "a" / "x.jpg")
    (found,) = (f for f in check_folder(tmp_path / "set").findings if f.name == "wrong_ending")
    assert [item.detail for item in found.items] == ["holds HEIF"]


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_photographs_are_upright_once(orientation: int, tmp_path: Path) -> None:
    image = picture(5, 64, 96)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    turn = {
        1: None,
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_270,
        8: Image.Transpose.ROTATE_90,
    }[orientation]
    upright = image if turn is None else image.transpose(turn)
    path = tmp_path / "a.heic"
    pillow_heif.register_heif_opener()
    image.info["exif"] = exif.tobytes()  # stored as cameras do: as a property of the image, too
    image.save(path, quality=-1)
    found = read_bands(path, 3, None)[0]
    assert found.size == upright.size
    differences = np.asarray(found, np.int16) - np.asarray(upright, np.int16)
    assert np.abs(differences).mean() < 5


@pytest.mark.parametrize("area", [None, (0.3, 0.8)])
def test_training_reads_them(area: tuple[float, float] | None, tmp_path: Path) -> None:
    decoder = Decoder(preprocessing=PREPARED, area=area)
    path = heic(tmp_path / "a.heic", 7)
    same = tmp_path / "a.png"
    same.write_bytes(encoded(picture(7, 64, 96), "PNG"))
    difference = decoder.read(str(path), 11).astype(int) - decoder.read(str(same), 11)
    assert np.abs(difference).mean() < 5


def test_the_limit_of_pixels_holds(tmp_path: Path) -> None:
    path = heic(tmp_path / "a.heic", 1)
    with limited(1000), pytest.raises(TooLarge, match="6,144 pixels; valid: at most 1,000"):
        open_image(path)


@pytest.mark.parametrize("cut", [40, 400])
def test_a_damaged_photograph_is_named(cut: int, tmp_path: Path) -> None:
    path = heic(tmp_path / "a.heic", 1)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"a\.heic: "):
        read_bands(path, 3, None)


@pytest.mark.usefixtures("without_decoder")
def test_without_the_decoder_the_remedy_is_named(tmp_path: Path) -> None:
    path = heic_without_import(tmp_path)
    with pytest.raises(MissingDecoder, match="a HEIC photograph, which needs pip install"):
        open_image(path)


def heic_without_import(folder: Path) -> Path:
    path = folder / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    return path


def test_data_check_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs(tmp_path, heics=2, others=4)
    assert {"no_decoder", "not_images"}.isdisjoint(
        found.name for found in check_folder(tmp_path).findings
    )
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for name in ("a/1.pdf", "b/2.PDF", "b/3.nef"):
        (tmp_path / name).write_bytes(b"%PDF")
    found = {found.name: found for found in check_folder(tmp_path).findings if found.serious}
    assert found["no_decoder"].line == (
        "4 HEIC photographs without a decoder: skipped in training; "
        "pip install 'vitlab[heif]', or convert to JPEG"
    )
    assert found["foreign"].line == (
        "3 files in formats that are not read (2 PDF, 1 Nikon raw): skipped in training; "
        "convert them to JPEG or PNG"
    )
    assert not {"other_files", "hidden"} & set(found)


def test_of_several_reasons_the_most_frequent_is_told(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(4)]
    reasons = ["cut short", "a HEIC photograph", "cut", "a HEIC photograph"]
    assert one_of(dict(zip(paths, reasons, strict=True))) == f"2 as {paths[1]}: a HEIC photograph"
    assert one_of(dict(zip(paths[:1], reasons, strict=False))) == f"one is {paths[0]}: cut short"
