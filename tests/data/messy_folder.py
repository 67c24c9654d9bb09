"""A folder of images in which every finding of a check is there, in known numbers."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from data.picture_files import encoded, picture, png_of

GOOD = 12
"""Flawless training images of each of `cat`, `dog` and `owl`."""
EXPECTED = {
    "case_classes": 1,
    "untrained_classes": 1,
    "empty_classes": 1,
    "imbalance": 1,
    "across_splits": 3,
    "conflicting": 1,
    "truncated": 2,
    "not_images": 3,
    "unreadable": 3,
    "too_large": 2,
    "small": 1,
    "copies": 2,
    "unjudged_classes": 1,
    "few": 1,
    "unsplit": 1,
    "narrow": 1,
    "wrong_ending": 1,
    "rotated": 1,
    "animated": 1,
    "grey": 2,
    "cmyk": 1,
    "deep": 2,
    "transparent": 1,
    "palette": 1,
    "loose": 2,
    "hidden": 1,
    "other_files": 2,
}


def photograph(seed: int, side: int = 96) -> Image.Image:
    """Something that no other seed's looks like."""
    return picture(seed, side, side + 8)


def make_messy(root: Path) -> Path:
    """Write the folder that `EXPECTED` counts."""
    seeds = iter(range(1000))
    for label in ("cat", "dog", "owl"):
        for number in range(GOOD):
            _save(root / "train" / label / f"{number:02}.jpg", photograph(next(seeds)))
    _save(root / "train" / "rare" / "0.jpg", photograph(next(seeds)))
    (root / "train" / "ghost").mkdir()
    for label in ("cat", "Dog", "stranger", "ghost", "rare"):
        _save(root / "val" / label / "0.jpg", photograph(next(seeds)))
    _copies(root)
    _odd(root / "train" / "cat")
    _broken(root / "train" / "owl")
    _save(root / "loose.jpg", photograph(next(seeds)))
    _save(root / "train" / "loose.png", photograph(next(seeds)))
    (root / "train" / "dog" / "notes.txt").write_text("x")
    (root / "labels.csv").write_text("x")
    (root / "train" / "dog" / "picture.data").write_bytes(encoded(photograph(900), "PNG"))
    return root


def _save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def _copies(root: Path) -> None:
    """Two exact and one near copy in val, one exact and one near in a class, one in two classes."""
    train, val = root / "train", root / "val" / "cat"
    shutil.copy(train / "cat" / "00.jpg", val / "same 1.jpg")
    shutil.copy(train / "cat" / "01.jpg", val / "same 2.jpg")
    with Image.open(train / "cat" / "02.jpg") as image:
        image.resize((70, 64)).save(val / "nearly.jpg", quality=70)
    shutil.copy(train / "dog" / "00.jpg", train / "dog" / "twin.jpg")
    with Image.open(train / "dog" / "01.jpg") as image:
        image.save(train / "dog" / "saved again.png")
    shutil.copy(train / "dog" / "02.jpg", train / "owl" / "no owl.jpg")


def _odd(folder: Path) -> None:
    """Readable, and remarkable in one way each."""
    exif = Image.Exif()
    exif[0x0112] = 6
    sixteen = np.asarray(photograph(501).convert("L")).astype(np.uint16) * 257
    clear = photograph(502).convert("RGBA")
    clear.putalpha(photograph(503).convert("L"))
    frames = [photograph(504), photograph(505)]
    contents = {
        "turned.jpg": encoded(photograph(506), "JPEG", exif=exif),
        "grey.jpg": encoded(photograph(507).convert("L"), "JPEG"),
        "cmyk.jpg": encoded(photograph(508).convert("CMYK"), "JPEG"),
        "sixteen.png": encoded(Image.fromarray(sixteen), "PNG"),
        "sixteen colours.png": sixteen_bit_png(photograph(515)),
        "clear.png": encoded(clear, "PNG"),
        "palette.png": encoded(photograph(509).quantize(64), "PNG"),
        "moving.gif": encoded(photograph(510), "GIF", save_all=True, append_images=frames),
        "really png.jpg": encoded(photograph(511), "PNG"),
        "strip.png": encoded(picture(512, 48, 200), "PNG"),
        "icon.png": encoded(picture(513, 16, 16), "PNG"),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def sixteen_bit_png(image: Image.Image) -> bytes:
    """A PNG of 16 bits in each of three channels, which Pillow reads and cannot write."""
    pixels = np.asarray(image).astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return png_of(image.height, image.width, bits=16, rows=rows)


def _broken(folder: Path) -> None:
    jpeg, png = encoded(photograph(600), "JPEG"), encoded(photograph(601), "PNG")
    contents = {
        "cut.jpg": jpeg[:-100],
        "cut.png": png[: len(png) // 2],
        "paper.jpg": b"%PDF-1.7\n",
        "page.jpg": b"<!DOCTYPE html><html>404</html>",
        "text.png": b"not found\n",
        "empty.jpg": b"",
        "one pixel.png": encoded(picture(4, 1, 1), "PNG"),
        "large.png": png_of(30_000, 30_000),
        "rather large.png": png_of(10_000, 10_000),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "gone.jpg").symlink_to(folder / "nowhere.jpg")
