"""Open an image file: check its size and format, and describe files that are not images.

The limit on pixels keeps a small file from filling the memory. It is Pillow's; the environment
variable VITLAB_MAX_PIXELS sets another one in every process that reads images, and the option of a
command overrides both.
"""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from vitlab.errors import ConfigError, InputError, SeveralFrames, TooLarge

ENDINGS = {
    "JPEG": (".jfif", ".jpe", ".jpeg", ".jpg", ".mpo"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "PPM": (".pbm", ".pgm", ".pnm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif", ".hif"),
}
"""Formats that are decoded, as Pillow names them, and the extensions of their files.

Pillow supports many more: EPS starts Ghostscript, and PSD, FITS, fonts and others have had security
holes and are not needed here. Formats that Pillow loads first come first: that is the quickest.
"""
HEIF = "HEIF"
"""Format of iPhone photographs (HEIC): decoded by pillow-heif, an extra."""
FORMATS = tuple(name for name in ENDINGS if name != HEIF)
"""Formats that Pillow decodes by itself."""
ARRAYS = frozenset({".npy"})
TIFFS = frozenset(ENDINGS["TIFF"])
VARIABLE = "VITLAB_MAX_PIXELS"
LEAST = 2
"""Pixels of the smallest image: a single pixel shows nothing."""
OPENINGS = {
    b"%PDF": "a PDF document",
    b"PK\3\4": "a ZIP archive or office document",
    b"\x1f\x8b": "a gzip archive",
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
    b"<?xml": "XML or SVG text",
    b"<svg": "SVG text",
}
"""First bytes, in lower case where they are text, of files often mistaken for images."""
REFUSED = {
    b"%!PS": "an EPS or PostScript document",
    b"\xc5\xd0\xd3\xc6": "an EPS document",
    b"8BPS": "a Photoshop (PSD) document",
    b"\0\0\0\x0cjP  ": "a JPEG 2000 image",
    b"\xff\x4f\xff\x51": "a JPEG 2000 image",
    b"\0\0\0\x0cJXL ": "a JPEG XL image",
    b"\xff\x0a": "a JPEG XL image",
    b"\0\0\1\0": "an icon (ICO)",
    b"icns": "an icon (ICNS)",
    b"DDS ": "a DDS texture",
    b"qoif": "a QOI image",
    b"SIMPLE": "a FITS file",
    b"\x01\xda": "an SGI image",
    b"\xd7\xcd\xc6\x9a": "a Windows metafile (WMF)",
    b"\x01\0\0\0": "a Windows metafile (EMF)",
    b"\x89HDF": "an HDF5 file",
    b"GRIB": "a GRIB file",
    b"BUFR": "a BUFR file",
}
"""First bytes of formats that are not decoded."""
OPENING = 64
"""Number of bytes that are inspected."""
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
AVIF = (b"avif", b"avis")
INSTALL_HEIF = "pip install 'vitlab[heif]'"
VALID = f"valid: {', '.join(FORMATS)} and, with {INSTALL_HEIF}, HEIC"
SEVERAL = {
    "AVIF": "animated",
    "GIF": "animated",
    "PNG": "animated",
    "TIFF": "several pages",
    "WEBP": "animated",
}
"""Formats in which more than one frame is ambiguous; in MPO, cameras' JPEG, the first is the
photograph.
"""
SUBFILE, REDUCED_OR_MASK = 254, 1 | 4
"""TIFF's tag for the kind of a page, and its bits for pages that belong to another one."""
UNREADABLE = "not a readable image ("
"""Text before a decoder's own message, which follows in brackets."""


class MissingDecoder(UnidentifiedImageError):
    """An image in a format whose decoder is not installed."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image inside of another file, such as a tar shard."""

    name: str
    read: Callable[[], bytes]
    """Content of the image; raises InputError with only the reason if it cannot be read."""

    def __fspath__(self) -> str:
        """Name, by whose ending the format is known; not the path of a file."""
        return self.name


ImageFile = Path | StoredImage
Readable = str | os.PathLike[str] | BytesIO
"""Image that can be opened: a file, or the content of one."""


def opened(source: str | os.PathLike[str] | StoredImage) -> Readable:
    """File of an image, checked to be one that ends, or its content."""
    if isinstance(source, StoredImage):
        return BytesIO(source.read())
    check_regular(os.fspath(source))
    return source


@contextmanager
def as_file(source: str | os.PathLike[str] | StoredImage) -> Iterator[str]:
    """Path of an image, for readers that need one: a stored image becomes a temporary file."""
    if not isinstance(source, StoredImage):
        yield os.fspath(source)
        return
    with tempfile.TemporaryDirectory(prefix="vitlab-") as folder:
        path = os.path.join(folder, f"image{os.path.splitext(source.name)[1]}")
        with open(path, "wb") as file:
            file.write(source.read())
        yield path


_asked: int | None = None
"""Pixel limit currently set by the user; see `limited`."""


def open_image(
    source: str | os.PathLike[str] | BytesIO, formats: tuple[str, ...] = FORMATS
) -> Image.Image:
    """Open a file or its bytes and read the header; raise TooLarge with only the reason.

    The only function that opens images: a format that is not listed is never decoded. Pillow's
    warning about large images is left to the caller to silence: threads share the filters.
    """
    limit = pixel_limit()
    if os.environ.get(VARIABLE) and Image.MAX_IMAGE_PIXELS is not None:
        # Pillow checks its own limit again while it decodes and crops.
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, limit or 0)
    Image.preinit()
    try:
        return Image.open(source, formats=formats)
    except Image.DecompressionBombError as error:
        raise TooLarge(too_many(bomb_pixels(error))) from error
    except UnidentifiedImageError as error:
        if formats is FORMATS and is_heic(_start(source)):
            return _open_heic(source)
        raise UnidentifiedImageError(describe(source)) from error


def _open_heic(source: str | os.PathLike[str] | BytesIO) -> Image.Image:
    """Open a HEIC photograph, upright: the decoder applies its orientation.

    Of several images, such as a burst, the primary one is the photograph.
    """
    try:
        import pillow_heif
    except ImportError as error:
        raise MissingDecoder(
            f"a HEIC photograph, which needs {INSTALL_HEIF}; or convert it to JPEG"
        ) from error
    if HEIF not in Image.OPEN:
        pillow_heif.register_heif_opener()
    if isinstance(source, BytesIO):
        source.seek(0)
    try:
        return Image.open(source, formats=(HEIF,))
    except Image.DecompressionBombError as error:
        raise TooLarge(too_many(bomb_pixels(error))) from error
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError(describe(source)) from error


@contextmanager
def limited(pixels: int | None) -> Iterator[None]:
    """Set the pixel limit within the block; None: keep the current one."""
    global _asked
    before, image_limit = _asked, Image.MAX_IMAGE_PIXELS
    _asked = before if pixels is None else pixels
    Image.MAX_IMAGE_PIXELS = pixel_limit()
    try:
        yield
    finally:
        _asked, Image.MAX_IMAGE_PIXELS = before, image_limit


def pixel_limit() -> int | None:
    """Maximum number of pixels of an image; None: unlimited."""
    if _asked is not None:
        return _asked
    told = os.environ.get(VARIABLE)
    if not told:
        return Image.MAX_IMAGE_PIXELS
    if not told.isdecimal() or int(told) < LEAST:
        raise ConfigError(f"{VARIABLE} is {told!r}; valid: a whole number from {LEAST} on")
    return int(told)


def is_array(path: str | os.PathLike[str]) -> bool:
    """True if a file holds a NumPy array, by its extension."""
    return os.path.splitext(path)[1].lower() in ARRAYS


def is_tiff(path: str | os.PathLike[str]) -> bool:
    """True if a file is a TIFF, by its extension."""
    return os.path.splitext(path)[1].lower() in TIFFS


def check_regular(path: str) -> None:
    """Raise for files that would block or never end: pipes, devices, sockets; and for folders."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise InputError("a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file")
    if not found.st_size:
        raise InputError("an empty file")


def check_pixels(what: str, height: int, width: int, *, least: int = LEAST) -> None:
    """Raise for an image that is too large to decode, or too small to show anything."""
    limit, pixels = pixel_limit(), height * width
    if pixels < least:
        raise InputError(f"{what}: {width} x {height} pixels; valid: at least {LEAST} in all")
    if limit is not None and pixels > limit:
        raise TooLarge(f"{what}: {too_many(pixels, f'{width} x {height}')}")


def too_many(pixels: int | None, found: str = "") -> str:
    """Error for an image above the pixel limit, with the way to raise it."""
    shown = found or ("too many" if pixels is None else f"{pixels:,}")
    limit = pixel_limit()
    most = "fewer" if limit is None else f"at most {limit:,} in all"
    raising = f"{VARIABLE}=" if _asked is None else "--max-pixels "
    return f"{shown} pixels; valid: {most} (or raise the limit: {raising}{pixels or 'N'})"


def bomb_pixels(error: Exception) -> int | None:
    """Number of pixels, from Pillow's error about an image that is too large."""
    found = re.search(r"\((\d+) pixels\)", str(error))
    return None if found is None else int(found[1])


def describe(source: str | os.PathLike[str] | BytesIO) -> str:
    """Describe a file, or its bytes, that cannot be opened as an image."""
    return describe_bytes(_start(source))


def _start(source: str | os.PathLike[str] | BytesIO) -> bytes:
    """First bytes of a file."""
    if isinstance(source, BytesIO):
        return source.getvalue()[:OPENING]
    with open(source, "rb") as file:
        return file.read(OPENING)


def is_heic(start: bytes) -> bool:
    """True if a file with these first bytes is a HEIC photograph."""
    return start[4:8] == b"ftyp" and start[8:12] in HEIC


def describe_bytes(content: bytes) -> str:
    """Describe a file that is not opened as an image, by its first bytes."""
    start = content[:OPENING]
    if not start:
        return "an empty file"
    if start[4:8] == b"ftyp":
        kind = "a damaged HEIC photograph" if is_heic(start) else "a video"
        kind = "a damaged AVIF image" if start[8:12] in AVIF else kind
        return f"{kind}, not an image that can be read; {VALID}"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for opening, kind in REFUSED.items():
        if start.startswith(opening):
            return f"{kind}, not an image that can be read; {VALID}"
    for opening, kind in OPENINGS.items():
        if start.startswith(opening) or text.startswith(opening):
            return f"{kind}, not an image; {VALID}"
    return f"not an image of a known format; {VALID}"


def reason_of(error: Exception, name: str = "image") -> str:
    """One line about the fault of a file, without the name that it was read by.

    Too many open files is not a fault of the file: that error is raised again.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    if isinstance(error, UnidentifiedImageError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).removeprefix(f"{name}: ").removeprefix("image: ").split())
    if text.startswith(UNREADABLE):  # the same words for every way of reading a file
        text = text[len(UNREADABLE) : -1]
    return text or type(error).__name__


def check_single(image: Image.Image) -> None:
    """Raise if a file that was just opened has several images."""
    kind = image.format or ""
    if kind in SEVERAL and has_frames(image):
        raise SeveralFrames(several(kind))


def several(kind: str) -> str:
    """Message for a file of several images."""
    return f"{SEVERAL[kind]} ({kind}); valid: one image, such as one frame as PNG"


def has_frames(image: Image.Image) -> bool:
    """True if a file that was just opened holds several images; TIFF previews do not count."""
    try:
        if not getattr(image, "is_animated", False):
            return False
        return image.format != "TIFF" or _has_pages(image)
    except Exception:  # later frames may be damaged, and are never read
        return False


def _has_pages(image: Image.Image) -> bool:
    """True if a TIFF has a second page that is not a smaller version or mask of another."""
    try:
        for page in range(1, getattr(image, "n_frames", 1)):
            image.seek(page)
            if not is_part(getattr(image, "tag_v2", {})):
                return True
        return False
    finally:
        image.seek(0)


def is_part(tags: Mapping[int, Any]) -> bool:
    """True if a page of a TIFF is a smaller version or the mask of another, by its tags."""
    return bool(int(tags.get(SUBFILE, 0)) & REDUCED_OR_MASK)
