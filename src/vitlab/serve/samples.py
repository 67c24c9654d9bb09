"""Images that the page offers: photographs of the package, or the user's own. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import as_file, files
from io import BytesIO
from itertools import islice
from pathlib import Path

from PIL import Image

from vitlab.errors import InputError
from vitlab.images.find import walk_images
from vitlab.images.open import open_image

SIDE, COLUMNS = 32, 50
"""Pixels of a photograph's side, and photographs in a row of the sheet."""
CHOSEN = {
    "cat": 304,
    "horse": 703,
    "bird": 217,
    "ship": 811,
    "dog": 510,
    "truck": 903,
    "airplane": 16,
    "frog": 606,
    "deer": 409,
    "automobile": 109,
}
"""Numbers of photographs on the sheet of test images."""
MOST = 24
"""Images of the user that are offered."""
LISTED = 10_000
"""Files of a folder among which they are chosen, evenly."""
SMALL = 128
"""Longest side of an image in the list of samples."""


@dataclass(frozen=True)
class Samples:
    """Names and encoded images, in the order of the page."""

    paths: tuple[Path, ...] = ()
    """Images of the user; empty: those of the package."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each image."""
        return tuple(path.name for path in self.paths) or tuple(CHOSEN)

    def read(self, number: int) -> bytes:
        """Encoded image."""
        if not self.paths:
            return self._packaged[number]
        try:
            return self.paths[number].read_bytes()
        except OSError as error:
            raise InputError(f"{self.paths[number]}: {error.strerror}") from error

    @cached_property
    def _packaged(self) -> list[bytes]:
        found = []
        folder = files("vitlab.data") / "sample"
        with as_file(folder / "test.webp") as path, open_image(path) as sheet:
            for number in CHOSEN.values():
                top, left = (SIDE * place for place in divmod(number, COLUMNS))
                buffer = BytesIO()
                sheet.crop((left, top, left + SIDE, top + SIDE)).save(buffer, "PNG")
                found.append(buffer.getvalue())
        return found


def thumbnail(picture: Image.Image) -> bytes:
    """Small PNG without metadata, which every browser shows."""
    small, file = picture.copy(), BytesIO()
    small.thumbnail((SMALL, SMALL))
    small.info.clear()
    small.save(file, "PNG")
    return file.getvalue()


def samples_of(given: Sequence[Path]) -> Samples:
    """Samples from files and folders; without any, those of the package."""
    if not given:
        return Samples()
    paths: list[Path] = []
    for place in given:
        if not place.exists():
            raise InputError(f"{place}: no such file; valid: image files, or folders of them")
        found = map(Path, walk_images(str(place))) if place.is_dir() else iter((place,))
        paths += islice(found, LISTED)
    if not paths:
        raise InputError(f"{given[0]}: no images; valid: image files, or folders of them")
    count = min(MOST, len(paths))
    return Samples(tuple(paths[number * len(paths) // count] for number in range(count)))
