"""Images prepared as torchvision and timm do, from every kind of file a user may have."""

import importlib
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from reference.torchvision_ops import declare
from vitlab.errors import ConfigError, InputError, UnknownName
from vitlab.images.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocessing

IMAGENET = Preprocessing(size=(224, 224), crop=0.875, mean=IMAGENET_MEAN, std=IMAGENET_STD)
RAW = Preprocessing(size=(5, 7), mean=(0.0,) * 3, std=(1 / 255,) * 3, interpolation="nearest")
"""Gives the pixels themselves, when the image has its size."""
GREY = replace(RAW, mean=(0.0,), std=(1 / 255,))
SIZES = [(224, 224), (331, 500), (500, 331), (101, 307), (255, 256), (37, 23)]


def noise(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_equals_torchvision_bit_for_bit(size: tuple[int, int], interpolation: Any) -> None:
    declare()
    transforms = importlib.import_module("torchvision.transforms")
    theirs = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    image = Image.fromarray(noise(*size))
    ours = replace(IMAGENET, interpolation=interpolation).apply(image)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs(image).numpy())


@pytest.mark.parametrize("crop", [1.0, 0.95, 0.9, 0.875, 224 / 232, 224 / 248])
@pytest.mark.parametrize("keep_aspect", [True, False])
def test_equals_timm_bit_for_bit(crop: float, keep_aspect: bool) -> None:
    declare()
    data = importlib.import_module("timm.data")
    theirs = data.create_transform(
        (3, 224, 224),
        interpolation="bicubic",
        mean=HALF,
        std=HALF,
        crop_pct=crop,
        crop_mode="center" if keep_aspect else "squash",
    )
    settings: dict[str, Any] = {"crop": crop, "keep_aspect": keep_aspect, "mean": HALF, "std": HALF}
    image = Image.fromarray(noise(331, 503))
    ours = replace(IMAGENET, **settings).apply(image)
    np.testing.assert_array_equal(ours, theirs(image).numpy())


def test_crop_written_as_a_fraction_recovers_the_resized_side() -> None:
    image = Image.fromarray(noise(41, 59))
    whole = replace(IMAGENET, crop=1.0, interpolation="nearest")
    for resize in range(224, 513):
        width = int(resize * 59 / 41)
        top, left = round((resize - 224) / 2), round((width - 224) / 2)
        resized = image.resize((width, resize), Image.Resampling.NEAREST)
        expected = whole.apply(resized.crop((left, top, left + 224, top + 224)))
        found = replace(whole, crop=224 / resize).apply(image)
        np.testing.assert_array_equal(found, expected, err_msg=f"resized to {resize}")


@pytest.mark.parametrize("shape", [(30, 90), (90, 30), (50, 70), (71, 50)])
def test_other_than_square_targets_are_covered_and_centred(shape: tuple[int, int]) -> None:
    height, width = shape
    ramp = np.zeros((height, width, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(height)[:, None], np.arange(width)
    pixels = replace(RAW, size=(50, 70), interpolation="bilinear").apply(ramp)
    scale = max(50 / height, 70 / width)
    # The middle stays the middle, up to the rounding of sides and of 8-bit values.
    assert pixels[0].mean() == pytest.approx((height - 1) / 2, abs=1.0)
    assert pixels[1].mean() == pytest.approx((width - 1) / 2, abs=1.0)
    assert np.ptp(pixels[0]) == pytest.approx(50 / scale, abs=2.5)
    assert np.ptp(pixels[1]) == pytest.approx(70 / scale, abs=2.5)


def test_path_image_and_array_give_the_same(tmp_path: Path) -> None:
    array = noise(61, 47)
    path = tmp_path / "a.png"
    Image.fromarray(array).save(path)
    expected = IMAGENET.apply(array)
    for source in (path, str(path), Image.open(path)):
        np.testing.assert_array_equal(IMAGENET.apply(source), expected)


def test_resized_changes_only_the_size() -> None:
    assert IMAGENET.resized(384) == replace(IMAGENET, size=(384, 384))
    assert IMAGENET.resized((160, 224)).apply(noise(31, 29)).shape == (3, 160, 224)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(tmp_path: Path, orientation: int) -> None:
    upright = noise(5, 7)
    undo = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.png"
    Image.fromarray(np.ascontiguousarray(undo[orientation])).save(path, exif=exif)
    np.testing.assert_allclose(RAW.apply(path), upright.transpose(2, 0, 1), rtol=1e-6)


def _saved(image: Image.Image, suffix: str, folder: Path) -> Path:
    path = folder / f"a.{suffix}"
    image.save(path)
    return path


def test_grey_images_fill_three_channels_and_colour_becomes_grey(tmp_path: Path) -> None:
    grey = Image.fromarray(noise(5, 7, 1)[..., 0])
    pixels = RAW.apply(_saved(grey, "png", tmp_path))
    np.testing.assert_allclose(pixels, np.broadcast_to(np.asarray(grey), (3, 5, 7)), rtol=1e-6)
    colour = Image.fromarray(noise(5, 7))
    np.testing.assert_allclose(GREY.apply(colour)[0], np.asarray(colour.convert("L")), rtol=1e-6)
    np.testing.assert_allclose(GREY.apply(np.asarray(grey))[0], np.asarray(grey), rtol=1e-6)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.linspace(0, 65535, 35).round().astype(np.uint16).reshape(5, 7)
    expected = np.round(values / 257.0)
    path = _saved(Image.fromarray(values), suffix, tmp_path)
    sources = (path, values, Image.fromarray(values.astype(np.int32)), values.astype(">u2"))
    for source in sources:
        np.testing.assert_allclose(GREY.apply(source)[0], expected, rtol=1e-6)
        np.testing.assert_allclose(RAW.apply(source)[2], expected, rtol=1e-6)


def test_transparency_becomes_white(tmp_path: Path) -> None:
    rgba = noise(5, 7, 4)
    rgba[..., 3] = 255
    rgba[2, 3] = (10, 20, 30, 0)
    expected = rgba[..., :3].copy()
    expected[2, 3] = 255
    for source in (_saved(Image.fromarray(rgba), "png", tmp_path), rgba):
        np.testing.assert_allclose(RAW.apply(source), expected.transpose(2, 0, 1), rtol=1e-6)


def test_palettes_keep_their_colours_and_their_hole(tmp_path: Path) -> None:
    indexed = Image.new("P", (7, 5), 1)
    indexed.putpalette([0, 0, 0, 200, 10, 60])
    indexed.putpixel((3, 2), 0)
    path = tmp_path / "a.gif"
    indexed.save(path, transparency=0)
    pixels = RAW.apply(path)
    np.testing.assert_allclose(pixels[:, 0, 0], (200, 10, 60), rtol=1e-6)
    np.testing.assert_allclose(pixels[:, 2, 3], 255, rtol=1e-6)


@pytest.mark.parametrize("mode", ["1", "CMYK", "YCbCr", "HSV", "LA", "PA", "RGBX"])
def test_other_modes_are_converted(mode: str) -> None:
    image = Image.fromarray(noise(5, 7)).convert("P" if mode == "PA" else "RGB").convert(mode)
    pixels = RAW.apply(image)
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_allclose(pixels, expected, rtol=1e-6)


def test_cmyk_photographs_can_be_read(tmp_path: Path) -> None:
    path = _saved(Image.new("CMYK", (7, 5), (255, 0, 0, 0)), "jpg", tmp_path)
    np.testing.assert_allclose(RAW.apply(path)[:, 2, 3], (0, 255, 255), atol=3)


def test_any_number_of_channels_from_an_array() -> None:
    array = noise(61, 47, 7)
    seven = replace(IMAGENET, mean=(0.1,) * 7, std=(0.3,) * 7)
    one = replace(IMAGENET, mean=(0.1,), std=(0.3,))
    expected = np.concatenate([one.apply(array[..., band]) for band in range(7)])
    np.testing.assert_array_equal(seven.apply(array), expected)
    with pytest.raises(InputError, match="an image of 3 channels; valid: 7"):
        seven.apply(Image.fromarray(array[..., :3]))
    with pytest.raises(InputError, match=r"shape \(61, 47, 3\); valid: .*C = 7"):
        seven.apply(array[..., :3])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros((5, 7, 2), np.uint8),
            r"shape \(5, 7, 2\); valid: \[H, W, C\] with C = 1 or 3 or",
        ),
        (np.zeros((2, 5, 7, 3), np.uint8), r"shape \(2, 5, 7, 3\)"),
        (np.zeros((5, 0, 3), np.uint8), "0 x 5 pixels"),
        (np.zeros((5, 7, 3)), "pixels are float64; valid: uint8 or uint16"),
        (np.full((5, 7), -1, np.int32), "values from -1 to -1; valid: 0 to 65535"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array: NDArray[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RAW.apply(array)


def test_float_images_are_refused() -> None:
    with pytest.raises(InputError, match="image: pixels are float32; valid: uint8 or uint16"):
        RAW.apply(Image.new("F", (7, 5)))


def test_empty_images_are_refused() -> None:
    with pytest.raises(InputError, match="image: 0 x 5 pixels"):
        RAW.apply(Image.new("RGB", (0, 5)))


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(buffer, "jpeg")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image at all", _jpeg()[:900], b"\x89PNG\r\n\x1a\n" + b"\0" * 40],
    ids=["empty", "text", "truncated", "damaged"],
)
def test_unreadable_files_are_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"a\.jpg: (not a readable|an empty file|not an image)"
    ) as error:
        IMAGENET.apply(path)
    assert "\n" not in str(error.value)


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.jpg: no such file"):
        IMAGENET.apply(tmp_path / "b.jpg")
    with pytest.raises(InputError, match="not a readable image"):
        IMAGENET.apply(tmp_path)


@pytest.mark.parametrize(
    ("width", "message"),
    [
        (62, r"a\.png: 62 x 1 pixels; valid: at most 61"),
        (124, r"a\.png: 124 pixels; valid: at most 61"),
    ],
)
def test_huge_images_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, message: str
) -> None:
    path = _saved(Image.new("L", (width, 1)), "png", tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 61)  # Pillow warns here and fails at the double
    with pytest.raises(InputError, match=message) as error:
        IMAGENET.apply(path)
    assert "\n" not in str(error.value)


def test_a_hairline_does_not_fill_the_memory() -> None:
    with pytest.raises(InputError, match="5003 x 1 image resized: 1280768 x 256 pixels"):
        IMAGENET.apply(np.zeros((1, 5003, 3), np.uint8))


def test_json_there_and_back() -> None:
    data = IMAGENET.to_json()
    assert data["size"] == [224, 224]
    assert data["mean"] == list(IMAGENET_MEAN)
    assert Preprocessing.from_json(data) == IMAGENET
    with pytest.raises(ConfigError, match="unknown key 'men'"):
        Preprocessing.from_json(data | {"men": 1})


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": (0, 224)}, r"size \(0, 224\) is not a positive"),
        ({"size": (224,)}, r"size \(224,\) is not a positive"),
        ({"crop": 0.0}, r"crop 0.0 is not in \(0, 1\]"),
        ({"crop": 1.1}, "crop 1.1"),
        ({"interpolation": "cubic"}, "unknown interpolation 'cubic'; did you mean bicubic"),
        ({"mean": (0.5,)}, "one number per channel"),
        ({"mean": (), "std": ()}, "one number per channel"),
        ({"mean": (0.5, float("nan"), 0.5)}, "mean .* is not finite"),
        ({"std": (0.5, 0.0, 0.5)}, "std .* is not positive"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, UnknownName), match=message):
        replace(IMAGENET, **changes)


def test_imports_no_torch() -> None:
    code = "import sys, vitlab.images.preprocessing; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
