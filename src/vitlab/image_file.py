"""Opening an image file: how large it may be, what it is when it is no image, that it is one.

The limit on pixels keeps a small file from filling the memory. It is Pillow's; the environment
variable VITLAB_MAX_PIXELS sets another one in every process that reads images, and what a user asks
of one command goes before both.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from vitlab.errors import ConfigError, InputError, SeveralPictures, TooLarge

VARIABLE = "VITLAB_MAX_PIXELS"
LEAST = 2
"""Pixels of the smallest image: one alone shows nothing."""
OPENINGS = {
    b"%PDF": "a PDF document",
    b"PK\3\4": "a ZIP archive or office document",
    b"\x1f\x8b": "a gzip archive",
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
    b"<?xml": "XML or SVG text",
    b"<svg": "SVG text",
}
"""First bytes, in lower case where they are text, of what is often taken for an image."""
OPENING = 64
"""Bytes that are looked at."""
HEIC = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
VALID = "valid: JPEG, PNG, WebP, TIFF, GIF, BMP and others"
SEVERAL = {
    "AVIF": "animated",
    "GIF": "animated",
    "PNG": "animated",
    "TIFF": "several pages",
    "WEBP": "animated",
}
"""Formats in which more than one frame leaves open which is meant; in MPO, cameras' JPEG, the
first is the photograph."""
SUBFILE, REDUCED_OR_MASK = 254, 1 | 4
"""TIFF's tag of what a page is, and its bits of pages that belong to another one."""


_asked: int | None = None
"""Pixels that somebody allows for now; see `limited`."""


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """The file with its header read; TooLarge with the reason alone where it is.

    Pillow's warning about large images is the caller's to silence: threads share the filters.
    """
    limit = pixel_limit()
    if os.environ.get(VARIABLE) and Image.MAX_IMAGE_PIXELS is not None:
        # Pillow looks at its own limit again while it decodes and crops.
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, limit or 0)
    try:
        return Image.open(path)
    except Image.DecompressionBombError as error:
        raise TooLarge(too_many(bomb_pixels(error))) from error
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError(describe(Path(path))) from error


@contextmanager
def limited(pixels: int | None) -> Iterator[None]:
    """Let images have so many pixels as long as the block lasts; None: as many as before."""
    global _asked
    before, image_limit = _asked, Image.MAX_IMAGE_PIXELS
    _asked = before if pixels is None else pixels
    Image.MAX_IMAGE_PIXELS = pixel_limit()
    try:
        yield
    finally:
        _asked, Image.MAX_IMAGE_PIXELS = before, image_limit


def pixel_limit() -> int | None:
    """Pixels that an image may have; None: as many as it likes."""
    if _asked is not None:
        return _asked
    told = os.environ.get(VARIABLE)
    if not told:
        return Image.MAX_IMAGE_PIXELS
    if not told.isdecimal() or int(told) < LEAST:
        raise ConfigError(f"{VARIABLE} is {told!r}; valid: a whole number from {LEAST} on")
    return int(told)


def check_pixels(what: str, height: int, width: int, *, least: int = LEAST) -> None:
    """Refuse an image that is too large to decode, or too small to show anything."""
    limit, pixels = pixel_limit(), height * width
    if pixels < least:
        raise InputError(f"{what}: {height} x {width} pixels; valid: at least {LEAST} in all")
    if limit is not None and pixels > limit:
        raise TooLarge(f"{what}: {too_many(pixels, f'{height} x {width}')}")


def too_many(pixels: int | None, found: str = "") -> str:
    """That an image has more pixels than the limit, and how to raise it."""
    shown = found or ("too many" if pixels is None else f"{pixels:,}")
    limit = pixel_limit()
    most = "fewer" if limit is None else f"at most {limit:,} in all"
    raising = f"{VARIABLE}=" if _asked is None else "--max-pixels "
    return f"{shown} pixels; valid: {most} (or raise the limit: {raising}{pixels or 'N'})"


def bomb_pixels(error: Exception) -> int | None:
    """What Pillow says of the size of an image that it refuses."""
    found = re.search(r"\((\d+) pixels\)", str(error))
    return None if found is None else int(found[1])


def describe(path: Path) -> str:
    """What a file is that Pillow does not know."""
    with path.open("rb") as file:
        return describe_bytes(file.read(OPENING))


def describe_bytes(content: bytes) -> str:
    """What these bytes are, which Pillow does not know."""
    start = content[:OPENING]
    if not start:
        return "an empty file"
    if start[4:8] == b"ftyp":
        kind = "a HEIC photograph" if start[8:12] in HEIC else "a video"
        return f"{kind}, not an image that can be read; {VALID}"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    kinds = [
        kind
        for opening, kind in OPENINGS.items()
        if start.startswith(opening) or text.lower().startswith(opening)
    ]
    found = f"{kinds[0]}, not an image" if kinds else "not an image of a known format"
    return f"{found}; {VALID}"


def check_single(image: Image.Image) -> None:
    """Refuse a file that was just opened if it leaves open which picture is meant."""
    kind = image.format or ""
    if kind in SEVERAL and has_frames(image):
        raise SeveralPictures(several(kind))


def several(kind: str) -> str:
    """What is said of a file of several pictures."""
    return f"{SEVERAL[kind]} ({kind}); valid: one picture, such as one frame as PNG"


def has_frames(image: Image.Image) -> bool:
    """Whether a file that was just opened holds several pictures; TIFF's previews are none."""
    try:
        if not getattr(image, "is_animated", False):
            return False
        return image.format != "TIFF" or _has_pages(image)
    except Exception:  # later frames may be damaged, and nobody reads them
        return False


def _has_pages(image: Image.Image) -> bool:
    """Whether a TIFF holds a second page that is not a smaller one or the mask of another."""
    try:
        for page in range(1, getattr(image, "n_frames", 1)):
            image.seek(page)
            if not is_part(getattr(image, "tag_v2", {})):
                return True
        return False
    finally:
        image.seek(0)


def is_part(tags: Mapping[int, Any]) -> bool:
    """Whether a page of a TIFF is a smaller version or the mask of another, by its tags."""
    return bool(int(tags.get(SUBFILE, 0)) & REDUCED_OR_MASK)
