"""Small image files, good and broken in every way that folders of real ones hold."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitlab.data.images import FileSet

CLASSES = 3


def picture(seed: int, height: int = 40, width: int = 52) -> Image.Image:
    """Smooth enough for JPEG, and unlike any other seed's."""
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """The bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def folder_of(folder: Path, count: int) -> FileSet:
    """JPEGs of different sizes."""
    paths = []
    for number in range(count):
        path = folder / f"{number:03}.jpg"
        path.write_bytes(encoded(picture(number, 40 + number, 52), "JPEG"))
        paths.append(path)
    return FileSet(paths=tuple(paths), labels=torch.arange(count) % CLASSES)


def png_of(height: int, width: int, *, bits: int = 8, rows: bytes = b"\0") -> bytes:
    """An RGB PNG of a size, with these rows of pixels, or none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def write_broken(folder: Path) -> dict[Path, str]:
    """Files that are refused, each with a part of the reason that should be given."""
    jpeg, png = encoded(picture(0), "JPEG"), encoded(picture(0), "PNG")
    two: dict[str, object] = {"save_all": True, "append_images": [picture(2)]}
    contents = {
        "film.gif": (encoded(picture(1), "GIF", **two), "animated (GIF)"),
        "film.png": (encoded(picture(1), "PNG", **two), "animated (PNG)"),
        "film.webp": (encoded(picture(1), "WEBP", **two), "animated (WEBP)"),
        "pages.tif": (encoded(picture(1), "TIFF", **two), "several pages (TIFF)"),
        "truncated.jpg": (jpeg[:-100], "truncated"),
        "head.jpg": (jpeg[:3], "not an image"),
        "tables.jpg": (jpeg[: len(jpeg) // 2], "Truncated"),
        "truncated.png": (png[: len(png) // 2], "truncated"),
        "flipped.png": (png[:60] + bytes(b ^ 255 for b in png[60:90]) + png[90:], ""),
        "empty.jpg": (b"", "empty"),
        "pixel.png": (encoded(picture(4, 1, 1), "PNG"), "1 x 1 pixels"),
        "paper.jpg": (b"%PDF-1.7\n", "a PDF document, not an image"),
        "text.jpg": (b"not found\n", "not an image"),
        "page.jpg": (b"<!DOCTYPE html><html>404</html>", "not an image"),
        "noise.jpg": (np.random.default_rng(0).bytes(3000), "not an image"),
        "nothing.png": (png_of(0, 0), ""),
        "bomb.png": (png_of(60_000, 60_000), "pixels"),
        "large.png": (png_of(10_000, 10_000), "pixels"),
    }
    broken = {}
    for name, (content, reason) in contents.items():
        (folder / name).write_bytes(content)
        broken[folder / name] = reason
    (folder / "folder.jpg").mkdir()
    broken[folder / "folder.jpg"] = "folder"
    broken[folder / "gone.jpg"] = "No such file"
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.jpg")
        broken[folder / "pipe.jpg"] = "not a regular file"
    if hasattr(os, "geteuid") and os.geteuid():  # root may read everything
        (folder / "secret.jpg").write_bytes(jpeg)
        (folder / "secret.jpg").chmod(0)
        broken[folder / "secret.jpg"] = "Permission denied"
    return broken


def write_odd(folder: Path) -> list[Path]:
    """Files that look wrong and can be read all the same."""
    image = picture(1)
    sixteen = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    transparent = image.convert("RGBA")
    transparent.putalpha(image.convert("L"))
    contents = {
        "really_png.jpg": encoded(image, "PNG"),
        "no_suffix": encoded(image, "JPEG"),
        "still.gif": encoded(image, "GIF"),
        "cmyk.jpg": encoded(image.convert("CMYK"), "JPEG"),
        "grey.jpg": encoded(image.convert("L"), "JPEG"),
        "sixteen.png": encoded(sixteen, "PNG"),
        "palette.png": encoded(image.convert("P"), "PNG"),
        "transparent.png": encoded(transparent, "PNG"),
        "bits.png": encoded(image.convert("1"), "PNG"),
        "progressive.jpg": encoded(image, "JPEG", progressive=True),
        "two_pictures.mpo": encoded(image, "MPO", save_all=True, append_images=[picture(2)]),
        "trailing.jpg": encoded(image, "JPEG") + b"\0" * 99,
        "two_pixels.png": encoded(picture(4, 1, 2), "PNG"),
        "strip.jpg": encoded(picture(4, 2, 500), "JPEG"),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
