"""Opening image files: limits, what a file is that is none, and files of several pictures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from data.picture_files import encoded, picture, png_of
from vitlab.errors import ConfigError, InputError, SeveralFrames, TooLarge
from vitlab.images.open import check_pixels, describe, open_image, pixel_limit
from vitlab.images.pixels import read_image, reading
from vitlab.images.preprocessing import HALF, Preprocessing

PREPARED = Preprocessing(size=(24, 20), mean=HALF, std=HALF)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's limit as it was, afterwards."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    monkeypatch.delenv("VITLAB_MAX_PIXELS", raising=False)


def test_a_huge_image_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png_of(30_000, 30_000))
    with pytest.raises(InputError) as caught:
        PREPARED.apply(path)
    message = str(caught.value)
    assert message == (
        f"{path}: 900,000,000 pixels; valid: at most 89,478,485 in all "
        "(or raise the limit: VITLAB_MAX_PIXELS=900000000)"
    )


@pytest.mark.parametrize("pillows", [3000, 900])
def test_the_limit_can_be_raised(
    pillows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(encoded(picture(0, 50, 70), "PNG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillows)
    with pytest.raises(TooLarge):
        PREPARED.apply(path)
    monkeypatch.setenv("VITLAB_MAX_PIXELS", "3500")
    assert PREPARED.apply(path).shape == (3, 24, 20)
    monkeypatch.setenv("VITLAB_MAX_PIXELS", "3499")
    with pytest.raises(TooLarge, match=r"70 x 50 pixels; valid: at most 3,499 in all"):
        PREPARED.apply(path)


@pytest.mark.parametrize("told", ["10", "1000000"])
def test_what_is_asked_for_goes_before_the_environment(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(encoded(picture(0, 50, 70), "PNG"))
    monkeypatch.setenv("VITLAB_MAX_PIXELS", told)
    with reading(3500):
        assert read_image(path, PREPARED).shape == (3, 24, 20)
    with reading(3499), pytest.raises(InputError, match=r"3,499 in all .*--max-pixels 3500"):
        read_image(path, PREPARED)
    assert pixel_limit() == int(told)


@pytest.mark.parametrize("told", ["many", "-1", "1.5", "1"])
def test_a_limit_that_is_none_is_the_users_mistake(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITLAB_MAX_PIXELS", told)
    path = tmp_path / "image.png"
    path.write_bytes(encoded(picture(0), "PNG"))
    with pytest.raises(ConfigError, match=f"VITLAB_MAX_PIXELS is '{told}'; valid: a whole number"):
        PREPARED.apply(path)


def test_without_a_limit_of_pillows_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert pixel_limit() is None
    check_pixels("image", 10**6, 10**6)


def test_one_pixel_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pixel.png"
    path.write_bytes(encoded(picture(0, 1, 1), "PNG"))
    with pytest.raises(InputError, match=r"pixel\.png: 1 x 1 pixels; valid: at least 2"):
        PREPARED.apply(path)
    with pytest.raises(InputError, match="array: 1 x 1 pixels"):
        PREPARED.apply(np.zeros((1, 1, 3), np.uint8))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"%PDF-1.7 and more", "a PDF document, not an image"),
        (b"\n <!doctype HTML>", "an HTML page, not an image"),
        (b"\xef\xbb\xbf<HTML>", "an HTML page, not an image"),
        (b"<svg xmlns=", "SVG text, not an image"),
        (b"PK\3\4", "a ZIP archive or office document, not an image"),
        (b"\0\0\0\x18ftypheic\0\0", "a damaged HEIC photograph, not an image that can be read"),
        (b"\0\0\0\x18ftypisom\0\0", "a video, not an image that can be read"),
        (b"", "an empty file"),
        (b"hello", "not an image of a known format"),
    ],
)
def test_what_is_no_image_is_named(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    assert describe(path).partition("; valid: JPEG, PNG, ")[0] == expected
    with pytest.raises(UnidentifiedImageError, match=expected):
        open_image(path)
    with pytest.raises(InputError, match=rf"a\.jpg: {expected}"):
        PREPARED.apply(path)


@pytest.mark.parametrize(
    ("format", "told"),
    [
        ("GIF", "animated (GIF)"),
        ("PNG", "animated (PNG)"),
        ("WEBP", "animated (WEBP)"),
        ("TIFF", "several pages (TIFF)"),
    ],
)
def test_of_several_pictures_nobody_knows_which_is_meant(
    format: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "several"
    path.write_bytes(encoded(picture(0), format, save_all=True, append_images=[picture(1)]))
    with pytest.raises(SeveralFrames) as caught:
        PREPARED.apply(path)
    assert str(caught.value) == f"{path}: {told}; valid: one image, such as one frame as PNG"
    path.write_bytes(encoded(picture(0), format))
    assert PREPARED.apply(path).shape == (3, 24, 20)


def test_a_smaller_version_in_a_tiff_is_no_other_picture(tmp_path: Path) -> None:
    """As maps have them, to be looked at from afar."""
    path, small = tmp_path / "map.tif", picture(0).reduce(2)
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[254] = 1
    small.encoderinfo = {"tiffinfo": tags}
    picture(0).save(path, save_all=True, append_images=[small])
    with Image.open(path) as image:
        assert getattr(image, "n_frames", 1) == 2
    np.testing.assert_array_equal(PREPARED.apply(path), PREPARED.apply(picture(0)))


def test_damage_in_a_later_frame_is_no_trouble(tmp_path: Path) -> None:
    frames = [picture(seed).quantize(64) for seed in range(2)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    first = encoded(frames[0], "GIF")
    path = tmp_path / "cut.gif"
    path.write_bytes(moving[: len(first)])
    assert PREPARED.apply(path).shape == (3, 24, 20)
