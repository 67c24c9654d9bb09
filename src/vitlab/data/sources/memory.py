"""Labelled images that a program holds: a torch Dataset, arrays, or pairs of image and label."""

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitlab.data.datasets import MEMORY, Data, DataSource
from vitlab.data.images import ArraySet, FileSet, ImageSet, Labels, task_of
from vitlab.data.sources.folder import SPLIT_SEED, TEST_SHARE
from vitlab.data.split import hold_out, survey_files
from vitlab.errors import DataError
from vitlab.images.preprocessing import read_bands
from vitlab.images.statistics import spread

KEYS = ("train", "test", "labels")
MEASURED = 2000
"""Images whose statistics are those of all."""
LARGEST = 64
"""Channels from which on the axes of an array are in the wrong order."""
VALID = (
    'pairs of image and label, a tuple of arrays (images, labels), or {"train": …, "test": …, '
    '"labels": names}'
)


def open_memory(
    data: Data,
    *,
    channels: int | None = None,
    names: Sequence[str] | None = None,
    whole: bool = False,
) -> DataSource:
    """Source of images in memory; a fifth is split off for testing unless `test` is given.

    `names` are those of the classes where the data has none; with `whole`, all images are one
    split.
    """
    parts: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {"train": data}
    unknown = sorted(set(parts) - set(KEYS))
    if unknown or "train" not in parts:
        found = unknown[0] if unknown else "no 'train'"
        raise DataError(f"data in memory: {found}; valid keys: {', '.join(KEYS)}")
    named = parts.get("labels") or getattr(parts["train"], "classes", None) or names
    train = _Part.read(parts["train"], channels)
    labels, known = _targets(train.labels, None if named is None else tuple(map(str, named)))
    images = train.image_set(labels)
    mean, std = train.statistics()
    source = DataSource(
        name=f"{MEMORY}{_digest(train.pixels, labels)}",
        labels=known,
        channels=train.channels,
        image_size=train.size,
        open_train=lambda: images,
        open_test=None,
        mean=mean,
        std=std,
        task=task_of(labels),
    )
    if "test" in parts:
        return replace(source, open_test=_reader(parts["test"], train.channels, known))
    return source if whole else _divided(source, images)


def _divided(source: DataSource, images: ImageSet) -> DataSource:
    """The source with a part of its images as test split."""

    @cache
    def split() -> tuple[ImageSet, ImageSet]:
        surveyed = survey_files(images) if isinstance(images, FileSet) else images
        return hold_out(surveyed, share=TEST_SHARE, seed=SPLIT_SEED)

    return replace(
        source, open_train=lambda: split()[0], open_test=lambda: split()[1], divided=True
    )


def _reader(data: Any, channels: int, names: tuple[str, ...]) -> Callable[[], ImageSet]:
    @cache
    def read() -> ImageSet:
        part = _Part.read(data, channels)
        return part.image_set(_targets(part.labels, names)[0])

    return read


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Images of one split as 8-bit pixels [C, H, W], with their labels as given."""

    pixels: Sequence[Tensor]
    labels: Any
    channels: int

    @classmethod
    def read(cls, data: Any, channels: int | None) -> "_Part":
        images, labels = _images_and_labels(data)
        wanted = channels or max(map(_channels, images))
        return cls(
            pixels=[_pixels(image, wanted) for image in images], labels=labels, channels=wanted
        )

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width; None if the images differ."""
        sizes = {(image.shape[1], image.shape[2]) for image in self.pixels}
        return sizes.pop() if len(sizes) == 1 else None

    def image_set(self, labels: Labels) -> ImageSet:
        if self.size is not None:
            return ArraySet(images=torch.stack(list(self.pixels)), labels=labels)
        return FileSet(paths=_stored(self.pixels), labels=labels)

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each channel, of values in [0, 1]."""
        some = torch.cat([image.flatten(1) for image in spread(self.pixels, MEASURED)], dim=1)
        values = some.double() / 255
        std = values.std(dim=1, correction=0).clamp(min=1 / 255)
        return tuple(values.mean(dim=1).tolist()), tuple(std.tolist())


def _images_and_labels(data: Any) -> tuple[Sequence[Any], Any]:
    """Images one by one, and all labels."""
    if isinstance(data, tuple) and len(data) == 2 and getattr(data[0], "ndim", 0) > 2:
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images with {len(labels)} labels; valid: one each")
        return [*images], labels
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise DataError(f"data of type {type(data).__name__}; valid: {VALID}")
    pairs = [data[number] for number in range(len(data))]
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise DataError(f"item {number} is a {type(pair).__name__}; valid: {VALID}")
    if not pairs:
        raise DataError(f"no images; valid: {VALID}")
    return [image for image, _ in pairs], [label for _, label in pairs]


def _channels(image: Any) -> int:
    """Channels that an image is read with."""
    if isinstance(image, Tensor):
        return image.shape[0] if image.ndim == 3 else 1
    if isinstance(image, np.ndarray):
        return image.shape[2] if image.ndim == 3 else 1
    if isinstance(image, str | os.PathLike):
        return 3
    return 1 if image.__class__.__module__.startswith("PIL") and image.mode in ("1", "L") else 3


def _pixels(image: Any, channels: int) -> UInt8[Tensor, "C H W"]:
    if isinstance(image, Tensor | np.ndarray):
        return _converted(_channel_first(image), channels)
    bands = [np.atleast_3d(np.asarray(band)) for band in read_bands(image, channels)]
    return torch.from_numpy(np.concatenate(bands, axis=2).transpose(2, 0, 1).copy())


def _channel_first(image: Tensor | NDArray[Any]) -> Tensor:
    """Tensors are [C, H, W], arrays [H, W, C], as everywhere in torch and NumPy."""
    if image.ndim not in (2, 3):
        raise DataError(
            f"image of shape {tuple(image.shape)}; valid: an array [H, W, C] or [H, W], or a "
            f"tensor [C, H, W] or [H, W]"
        )
    tensor = torch.as_tensor(image).detach().cpu()
    if tensor.ndim == 2:
        return tensor[None]
    first = tensor if isinstance(image, Tensor) else tensor.permute(2, 0, 1)
    if first.shape[0] > LARGEST:
        raise DataError(
            f"image of shape {tuple(image.shape)} has {first.shape[0]} channels; valid: an array "
            f"[H, W, C], or a tensor [C, H, W]"
        )
    return first


def _converted(image: Tensor, channels: int) -> UInt8[Tensor, "C H W"]:
    """8 bits of pixels that are 8 bits already, or numbers from 0 to 1."""
    if image.dtype != torch.uint8:
        low, high = image.min().item(), image.max().item()
        top = 1 if image.is_floating_point() else 255
        if low < 0 or high > top:
            raise DataError(
                f"image of {image.dtype} with values from {low:g} to {high:g}; valid: 8-bit "
                f"pixels, or floats from 0 to 1 (not normalised: vitlab normalises them)"
            )
        image = (image * 255).round() if image.is_floating_point() else image
    if image.shape[0] == 1 < channels:
        image = image.expand(channels, -1, -1)
    if image.shape[0] != channels:
        raise DataError(f"image of {image.shape[0]} channels; valid: {channels}")
    return image.to(torch.uint8).contiguous()


def _stored(images: Sequence[Tensor]) -> tuple[Path, ...]:
    """Images of different sizes as PNG files in a folder that is removed when Python ends."""
    if images[0].shape[0] not in (1, 3):
        raise DataError(
            f"images of different sizes and {images[0].shape[0]} channels; valid: one size, or 1 "
            f"or 3 channels"
        )
    folder = Path(tempfile.mkdtemp(prefix="vitlab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = tuple(folder / f"{number:07}.png" for number in range(len(images)))
    for path, image in zip(paths, images, strict=True):
        array = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        Image.fromarray(array.contiguous().numpy()).save(path, compress_level=1)
    return paths


def _targets(given: Any, names: tuple[str, ...] | None) -> tuple[Labels, tuple[str, ...]]:
    """Labels as tensors of their task, and the names of the classes or values."""
    if isinstance(given, Tensor):
        values = given.detach().cpu().numpy()
    else:
        values = np.array([one.tolist() if isinstance(one, Tensor) else one for one in given])
    kind, axes = values.dtype.kind, values.ndim
    if kind == "U" and axes == 1:
        known = names or tuple(sorted({*values.tolist()}))
        return torch.tensor([_index(name, known) for name in values.tolist()]), known
    if kind in "iu" and axes == 1:
        known = names or tuple(map(str, range(int(values.max()) + 1)))
        if values.min() < 0 or values.max() >= len(known):
            wrong = values.min() if values.min() < 0 else values.max()
            raise DataError(f"label {wrong}; valid: 0 to {len(known) - 1}")
        return torch.from_numpy(values.astype(np.int64)), known
    if axes == 2 and (kind == "b" or (kind in "iu" and {*np.unique(values)} <= {0, 1})):
        return torch.from_numpy(values.astype(bool)), _columns(names, values.shape[1])
    if kind == "f" and axes in (1, 2) and np.isfinite(values).all():
        rows = torch.from_numpy(values.astype(np.float32).reshape(len(values), -1))
        return rows, _columns(names, rows.shape[1])
    raise DataError(
        f"labels of shape {values.shape} and {values.dtype}; valid: one class number or name an "
        f"image, a row of booleans (several labels), or finite floats (values)"
    )


def _index(name: str, known: tuple[str, ...]) -> int:
    if name not in known:
        raise DataError(f"label {name!r}; valid: {', '.join(known[:8])}")
    return known.index(name)


def _columns(names: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    if names is not None and len(names) != count:
        raise DataError(f"{len(names)} names for rows of {count} labels; valid: {count}")
    return names or tuple(map(str, range(count)))


def _digest(images: Iterable[Tensor], labels: Tensor) -> str:
    """First digits of the digest of all pixels and labels."""
    digest = hashlib.blake2b(labels.numpy().tobytes(), digest_size=6)
    for image in images:
        digest.update(str(tuple(image.shape)).encode())
        digest.update(image.numpy().tobytes())
    return digest.hexdigest()
