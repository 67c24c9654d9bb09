"""Write the images and tables that the golden commands read, the same on every machine."""

from pathlib import Path

import numpy as np
from PIL import Image

LABELS = ("left", "middle", "right")
EACH = 12


def write_material(folder: Path) -> None:
    """Create `photos`, `messy`, one image on its own and a CSV file for each kind of label."""
    noise = np.random.default_rng(0)
    for number, label in enumerate(LABELS):
        (folder / "photos" / label).mkdir(parents=True)
        for index in range(EACH):
            _picture(noise, number).save(folder / "photos" / label / f"{index:02}.png")
    _picture(noise, 1).save(folder / "a.png")
    (folder / "not-an-image.png").write_bytes(b"plain text")
    _write_messy(folder / "messy", noise)
    _write_tables(folder)


def _picture(noise: np.random.Generator, place: int) -> Image.Image:
    """Noise with a bright band at one of three places, so that there is something to learn."""
    pixels = noise.integers(0, 160, (40, 36, 3), dtype=np.uint8)
    pixels[:, 12 * place : 12 * place + 12] += 90
    return Image.fromarray(pixels)


def _write_messy(folder: Path, noise: np.random.Generator) -> None:
    """Two classes with every kind of file that real folders contain."""
    for label in ("one", "two"):
        (folder / label).mkdir(parents=True)
        for index in range(4):
            _picture(noise, index % 3).save(folder / label / f"{index}.png")
    image = _picture(noise, 2)
    image.convert("L").save(folder / "one" / "grey.png")
    image.convert("P").save(folder / "one" / "palette.png")
    image.convert("RGBA").save(folder / "one" / "alpha.png")
    image.convert("CMYK").save(folder / "two" / "cmyk.tif")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    image.save(folder / "two" / "rotated.jpg", exif=exif)
    image.resize((300, 200)).save(folder / "two" / "large.webp", lossless=True)
    image.save(folder / "one" / "copy.png")
    image.save(folder / "two" / "copy.png")
    (folder / "two" / "broken.jpg").write_bytes(b"not an image")
    (folder / "two" / "empty.png").write_bytes(b"")
    (folder / "one" / "notes.txt").write_text("no image")


def _write_tables(folder: Path) -> None:
    """The images of `photos` with a label, several labels, or a number each."""
    rows = [
        (f"photos/{label}/{index:02}.png", label, index, number)
        for number, label in enumerate(LABELS)
        for index in range(EACH)
    ]
    tables = {
        "single": ["path,label", *(f"{path},{label}" for path, label, _, _ in rows)],
        "multi": ["path,labels", *(f"{path},{_tags(label, i)}" for path, label, i, _ in rows)],
        "values": ["path,value", *(f"{path},{3 * number + i / 10}" for path, _, i, number in rows)],
    }
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def _tags(label: str, index: int) -> str:
    return ";".join([label, "even"] if index % 2 == 0 else [label])
