"""Opening an image file: how large it may be, what it is when it is no image, which frame counts.

The limit on pixels keeps a small file from filling the memory. It is Pillow's, and the environment
variable VITLAB_MAX_PIXELS sets another one, in every process that reads images.
"""

import logging
import os
import re
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from vitlab.errors import ConfigError, InputError, TooLarge

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

log = logging.getLogger(__name__)
_noted: list[str] = []


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
        pixels = re.search(r"\d+", str(error))
        raise TooLarge(f"{pixels[0] if pixels else 'too many'} pixels; {valid_pixels()}") from error
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError(describe(Path(path))) from error


def pixel_limit() -> int | None:
    """Pixels that an image may have; None: as many as it likes."""
    told = os.environ.get(VARIABLE)
    if not told:
        return Image.MAX_IMAGE_PIXELS
    if not told.isdecimal() or int(told) < LEAST:
        raise ConfigError(f"{VARIABLE} is {told!r}; valid: a whole number from {LEAST} on")
    return int(told)


def check_pixels(what: str, height: int, width: int, *, least: int = LEAST) -> None:
    """Refuse an image that is too large to decode, or too small to show anything."""
    limit, pixels = pixel_limit(), height * width
    message = f"{what}: {height} x {width} pixels (height, width); {valid_pixels()}"
    if pixels < least:
        raise InputError(message)
    if limit is not None and pixels > limit:
        raise TooLarge(message)


def valid_pixels() -> str:
    """How many pixels an image may have, in words."""
    return f"valid: {LEAST} to {pixel_limit()} in all (the variable {VARIABLE} sets the limit)"


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
        return f"{kind}, not an image that Pillow reads"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    kinds = [
        kind
        for opening, kind in OPENINGS.items()
        if start.startswith(opening) or text.lower().startswith(opening)
    ]
    return f"{kinds[0]}, not an image" if kinds else "not an image of a known format"


def has_frames(image: Image.Image) -> bool:
    """Whether a file that was just opened holds more than the picture that is read."""
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # later frames may be damaged, and nobody reads them
        return False


def note_frames(image: Image.Image, name: str) -> None:
    """Say, once in each process, that of an animation the first frame is read."""
    if not _noted and has_frames(image):
        _noted.append(name)
        log.warning("%s holds several frames: the first is used, as in all such files", name)
