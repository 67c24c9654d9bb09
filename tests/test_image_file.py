"""Opening image files: limits, what a file is that is none, and which frame counts."""

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from data.picture_files import encoded, picture, png_of
from vitlab import image_file
from vitlab.errors import ConfigError, InputError, TooLarge
from vitlab.image_file import check_pixels, describe, has_frames, open_image, pixel_limit
from vitlab.preprocessing import HALF, Preprocessing

PREPARED = Preprocessing(size=(24, 20), mean=HALF, std=HALF)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's limit and the note on frames as they were, afterwards."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    monkeypatch.setattr(image_file, "_noted", [])
    monkeypatch.delenv("VITLAB_MAX_PIXELS", raising=False)


def test_a_huge_image_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png_of(30_000, 30_000))
    with pytest.raises(InputError) as caught:
        PREPARED.apply(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: 900000000 pixels; valid: 2 to 89478485 in all")
    assert "VITLAB_MAX_PIXELS" in message
    assert "\n" not in message


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
    with pytest.raises(TooLarge, match=r"50 x 70 pixels \(height, width\); valid: 2 to 3499"):
        PREPARED.apply(path)


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
    with pytest.raises(InputError, match=r"pixel\.png: 1 x 1 pixels \(height, width\); valid: 2"):
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
        (b"\0\0\0\x18ftypheic\0\0", "a HEIC photograph, not an image that Pillow reads"),
        (b"\0\0\0\x18ftypisom\0\0", "a video, not an image that Pillow reads"),
        (b"", "an empty file"),
        (b"hello", "not an image of a known format"),
    ],
)
def test_what_is_no_image_is_named(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    assert describe(path) == expected
    with pytest.raises(UnidentifiedImageError, match=expected):
        open_image(path)
    with pytest.raises(InputError, match=rf"a\.jpg: not a readable image \({expected}\)"):
        PREPARED.apply(path)


def test_of_an_animation_the_first_frame_is_used_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [picture(seed).quantize(64) for seed in range(3)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    for name in ("a.gif", "b.gif"):
        (tmp_path / name).write_bytes(moving)
    (tmp_path / "still.gif").write_bytes(encoded(frames[0], "GIF"))
    with caplog.at_level(logging.WARNING):
        found = {name: PREPARED.apply(tmp_path / name) for name in ("still.gif", "a.gif", "b.gif")}
    np.testing.assert_array_equal(found["a.gif"], found["still.gif"])
    np.testing.assert_array_equal(found["b.gif"], found["still.gif"])
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'a.gif'} holds several frames: the first is used, as in all such files"
    ]


def test_damage_in_a_later_frame_is_no_trouble(tmp_path: Path) -> None:
    frames = [picture(seed).quantize(64) for seed in range(3)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    still = len(encoded(frames[0], "GIF"))
    for end in range(still, len(moving), 97):
        with Image.open(io.BytesIO(moving[:end])) as image:
            assert has_frames(image) in (True, False)
        path = tmp_path / "cut.gif"
        path.write_bytes(moving[:end])
        assert PREPARED.apply(path).shape == (3, 24, 20)
