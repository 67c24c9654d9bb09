"""From a file to 8-bit pixels: crops in one step, upright, the odd read and the broken named."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from data.picture_files import encoded, picture, write_broken, write_odd
from vitlab.errors import InputError
from vitlab.images.decode import Decoder, crop_box
from vitlab.images.preprocessing import FILTERS, HALF, Preprocessing

PREPARED = Preprocessing(size=(24, 20), mean=HALF, std=HALF, interpolation="bilinear")
GREY = Preprocessing(size=(24, 20), mean=(0.5,), std=(0.5,))
AREA, RATIO = (0.3, 0.9), (0.6, 1.5)


def cropping(preprocessing: Preprocessing = PREPARED, **changes: object) -> Decoder:
    return Decoder(preprocessing=preprocessing, **({"area": AREA, "ratio": RATIO} | changes))


def expected_crop(image: Image.Image, seed: int, interpolation: str = "bilinear") -> Image.Image:
    """Crop, then resize: what Pillow makes of the whole image."""
    size = (image.height, image.width)
    top, left, bottom, right = crop_box(size, area=AREA, ratio=RATIO, seed=seed)
    return image.crop((left, top, right, bottom)).resize((20, 24), FILTERS[interpolation])


def differences(found: NDArray[np.uint8], expected: Image.Image) -> NDArray[np.int64]:
    """Levels between pixels [C, H, W] and Pillow's."""
    return np.abs(found.transpose(1, 2, 0).astype(np.int64) - np.asarray(expected))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_random_crop_is_pillows_crop_and_resize(
    format: str, interpolation: Any, tmp_path: Path
) -> None:
    path = tmp_path / "image"
    path.write_bytes(encoded(picture(7, 43, 59), format))
    decoder = cropping(replace(PREPARED, interpolation=interpolation))
    for seed in range(8):
        with Image.open(path) as image:
            expected = expected_crop(image, seed, interpolation)
        # Weights of fewer bits and two roundings: neighbouring levels, now and then.
        found = differences(decoder.read(str(path), seed), expected)
        assert found.max() <= (2 if interpolation == "bicubic" else 1)
        assert found.mean() < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(encoded(picture(7, 601, 803), "JPEG", quality=95))
    with Image.open(path) as image:
        expected = expected_crop(image, seed)
    # Decoding at an eighth averages blocks of pixels before the filter does so again.
    assert differences(cropping().read(str(path), seed), expected).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_crops_are_upright(format: str, orientation: int, tmp_path: Path) -> None:
    """The crop is all of the upright image: tall, and so lying in the file from 5 on."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    shape = (45, 20) if orientation < 5 else (20, 45)
    path = tmp_path / "image"
    path.write_bytes(encoded(picture(5, *shape), format, exif=exif))
    whole = cropping(area=(1.0, 1.0), ratio=(20 / 45, 20 / 45))
    with Image.open(path) as image:
        expected = ImageOps.exif_transpose(image).resize((20, 24), Image.Resampling.BILINEAR)
    assert differences(whole.read(str(path), 0), expected).max() <= 1


def test_without_a_crop_files_are_read_as_when_predicting(tmp_path: Path) -> None:
    exact = Preprocessing(size=(24, 20), mean=(0.0,) * 3, std=(1.0,) * 3, crop=0.8)
    for path in write_odd(tmp_path):
        pixels = Decoder(preprocessing=exact).read(str(path), 0)
        scaled = pixels.astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(scaled, exact.apply(path))


@pytest.mark.parametrize("preprocessing", [PREPARED, GREY], ids=["colour", "grey"])
def test_odd_files_are_read(preprocessing: Preprocessing, tmp_path: Path) -> None:
    for path in write_odd(tmp_path):
        for seed in range(5):
            pixels = cropping(preprocessing).read(str(path), seed)
            assert pixels.shape == (preprocessing.channels, 24, 20)
            assert pixels.dtype == np.uint8


@pytest.mark.parametrize("decoder", [cropping(), Decoder(preprocessing=PREPARED)])
def test_broken_files_are_refused_with_a_reason(decoder: Decoder, tmp_path: Path) -> None:
    broken = write_broken(tmp_path)
    assert len(broken) >= 10
    for path, reason in broken.items():
        with pytest.raises(InputError) as caught:
            decoder.read(str(path), 0)
        assert reason in str(caught.value)
        assert str(caught.value)
        assert path.name not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_decoder_survives_json() -> None:
    for decoder in (cropping(), Decoder(preprocessing=GREY)):
        assert Decoder.from_json(json.loads(json.dumps(decoder.to_json()))) == decoder


def test_the_process_that_decodes_loads_no_torch() -> None:
    code = "import sys, vitlab.data.pool; print('torch' in sys.modules)"
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
