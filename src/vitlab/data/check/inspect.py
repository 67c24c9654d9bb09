"""Inspect one file: read once, completely, as for a model."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from PIL import Image, UnidentifiedImageError

from vitlab.data.duplicates import Thumbnails, grey, thumbnail
from vitlab.data.shards.index import UNLABELLED, Index
from vitlab.data.shards.layout import TEST, TRAIN
from vitlab.data.sources.folder import (
    all_files,
    entries,
    has_splits,
    is_named_image,
    subfolders,
)
from vitlab.errors import DataError, SeveralFrames, TooLarge
from vitlab.images.bands import array_bands, tiff_bands
from vitlab.images.decode import LYING, UPRIGHT
from vitlab.images.open import (
    ENDINGS,
    ImageFile,
    MissingDecoder,
    as_file,
    check_pixels,
    check_regular,
    check_single,
    is_array,
    is_tiff,
    open_image,
    reason_of,
)
from vitlab.images.preprocessing import ORIENTATION
from vitlab.images.statistics import shown

Problem = Literal["unreadable", "truncated", "not_images", "too_large", "animated", "no_decoder"]
CHUNK = 256
"""Files in progress at a time, so that interrupts are handled and memory stays small."""
ALIKE = {"MPO": "JPEG"}
"""Formats that share another one's extensions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFacts:
    """An image that can be read."""

    height: int
    width: int
    """Width of the upright image."""
    format: str
    mode: str
    orientation: int
    """EXIF orientation; 1 is upright."""
    deep: bool
    """More than 8 bits a channel."""
    transparent: bool
    small: Thumbnails
    """Grey thumbnail, for comparison."""

    def has_ending_of_its_format(self, path: str) -> bool:
        """True if the extension matches the content."""
        claimed = _formats().get(os.path.splitext(path)[1].lower())
        return claimed is None or claimed == ALIKE.get(self.format, self.format)


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file that cannot be read as an image."""

    problem: Problem
    reason: str


Inspected = ImageFacts | BrokenFile
Watch = Callable[[int, int], None]
"""Callback with the number of finished files and the total."""


def inspect_files(paths: Sequence[ImageFile], watch: Watch) -> Iterator[Inspected]:
    """Facts about each file, in order, decoded by as many threads as there are processors."""
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # Pillow's, about damage that it can repair
        for start in range(0, len(paths), CHUNK):
            watch(start, len(paths))
            yield from pool.map(inspect_file, paths[start : start + CHUNK])
    watch(len(paths), len(paths))


def inspect_file(source: ImageFile) -> Inspected:
    """Decode an image, and return its facts or the reason why it cannot be read."""
    path = Path(source)
    try:
        with as_file(source) as name:
            path = Path(name)
            return _inspect(path)
    except Exception as error:  # decoders of damaged files raise nearly anything
        # The valid choices are in the finding, once for all of its files.
        found = re.split("; valid: |, which needs ", reason_of(error, str(path)))[0]
        return BrokenFile(_problem(error), found)


def _inspect(path: Path) -> ImageFacts:
    check_regular(str(path))
    if is_array(path) or (is_tiff(path) and not _opens(path)):
        return _band_facts(path)
    with open_image(path) as image:
        check_single(image)
        return _facts(image)


def is_image(path: Path) -> bool:
    """True if a file opens as an image, whatever its name."""
    try:
        check_regular(str(path))
        with open_image(path):
            return True
    except MissingDecoder:
        return True
    except Exception:  # a file that cannot be opened is not an image
        return False


def _facts(image: Image.Image) -> ImageFacts:
    check_pixels("image", image.height, image.width)  # some formats decode all to find their EXIF
    # Before the pixels are decoded: then the file is closed, and drafts have another size.
    deep = _is_deep(image)
    mode, transparent = image.mode, image.has_transparency_data
    orientation = image.getexif().get(ORIENTATION, 1)
    width, height = image.size
    if orientation in LYING:
        width, height = height, width
    return ImageFacts(
        height=height,
        width=width,
        format=image.format or "",
        mode=mode,
        orientation=orientation if orientation in UPRIGHT else 1,
        deep=deep,
        transparent=transparent,
        small=thumbnail(image),
    )


def _opens(path: Path) -> bool:
    """True if Pillow recognises the content of a file; other problems are reported later."""
    try:
        open_image(path).close()
    except UnidentifiedImageError:
        return False
    return True


def _band_facts(path: Path) -> ImageFacts:
    """Facts about a file of any number of bands, read without Pillow."""
    bands = array_bands(path) if is_array(path) else tiff_bands(path)
    image = shown(path)
    return ImageFacts(
        height=image.height,
        width=image.width,
        format="NPY" if is_array(path) else "TIFF",
        mode=f"{bands.channels} bands",
        orientation=1,
        deep=bands.deep,
        transparent=False,
        small=grey(image),
    )


def _is_deep(image: Image.Image) -> bool:
    """True for more than 8 bits in the file; Pillow opens some of these in a mode of 8."""
    if image.mode.startswith("I") or image.mode == "F":
        return True
    decoded = (tile[3] for tile in getattr(image, "tile", ()))
    raw = (rule[0] if isinstance(rule, tuple) else rule for rule in decoded)
    return any(isinstance(name, str) and ";16" in name for name in raw)


def _problem(error: Exception) -> Problem:
    if isinstance(error, MissingDecoder):
        return "no_decoder"
    if isinstance(error, UnidentifiedImageError):
        return "not_images"
    if isinstance(error, TooLarge):
        return "too_large"
    if isinstance(error, SeveralFrames):
        return "animated"
    return "truncated" if "truncated" in str(error).lower() else "unreadable"


@cache
def _formats() -> dict[str, str]:
    """Format of each extension."""
    return {ending: name for name, endings in ENDINGS.items() for ending in endings}


# Every file of a folder with its split and class, for faulty folders too.

WHOLE = ""
"""Name of the split of a folder that has none."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file, with the split and class from its location."""

    path: str
    """Path below the folder, with slashes."""
    split: str
    label: str | None
    """None if it is in no class folder."""
    named_image: bool
    """True if its extension is that of an image."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Contents of a folder."""

    root: Path
    classes: dict[str, tuple[str, ...]]
    """Class folders by split; a split `""` if there are only class folders."""
    files: tuple[ListedFile, ...]


def list_folder(root: Path) -> Listing:
    """All files of a folder; raises only for an empty one."""
    if not root.is_dir():
        found = "is not a folder" if root.exists() else "no such folder"
        raise DataError(f"{root}: {found}; valid: a folder of one folder for each class")
    splits = _splits(root)
    classes = {split: tuple(sorted(subfolders(root / split))) for split in splits}
    files = tuple(_files(root, classes))
    if not files and not any(classes.values()):
        raise DataError(f"{root} is empty; valid: one folder of images for each class")
    return Listing(root=root, classes=classes, files=files)


def list_index(index: Index) -> Listing:
    """All samples of shards or tables, in their order."""
    header = index.header
    single = header.task == "single-label"
    whole = [WHOLE] if len(header.splits) == 1 else list(header.splits)
    files, classes = [], {}
    for split, (start, end) in zip(whole, header.splits.values(), strict=True):
        labels = index.label[start:end].tolist() if single else [UNLABELLED] * (end - start)
        classes[split] = tuple(sorted({header.labels[n] for n in labels if n != UNLABELLED}))
        files += [
            ListedFile(index.name(start + number), split, _name(header.labels, label), True)
            for number, label in enumerate(labels)
        ]
    return Listing(root=Path(index.store.root), classes=classes, files=tuple(files))


def _name(names: Sequence[str], label: int) -> str | None:
    return None if label == UNLABELLED else names[label]


def _splits(root: Path) -> list[str]:
    if not has_splits(root):
        return [WHOLE]
    return [name for name in (TRAIN, *TEST) if (root / name).is_dir()]


def _files(root: Path, classes: dict[str, tuple[str, ...]]) -> Iterator[ListedFile]:
    if WHOLE not in classes:
        yield from _loose(root, root, WHOLE)
    for split, labels in classes.items():
        yield from _loose(root, root / split, split)
        for label in labels:
            for path in sorted(all_files(root / split / label)):
                yield _listed(root, path, split, label)


def _loose(root: Path, folder: Path, split: str) -> Iterator[ListedFile]:
    """Files beside the class folders."""
    for entry in sorted(entries(str(folder)), key=lambda entry: entry.name):
        if entry.is_file():
            yield _listed(root, entry.path, split, None)


def _listed(root: Path, path: str, split: str, label: str | None) -> ListedFile:
    below = Path(path).relative_to(root).as_posix()
    return ListedFile(below, split, label, is_named_image(path))
