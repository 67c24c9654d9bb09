"""Small sets of real digits as files with a CSV: several labels, an angle, rare classes."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet

Grey = NDArray[np.uint8]


def digits(split: str) -> tuple[Grey, NDArray[np.int64]]:
    """Grey digits [N, 8, 8] and their numbers; test digits are by other hands."""
    source = open_data("digits")
    assert source.open_test is not None
    data = source.open_train() if split == "train" else source.open_test()
    assert isinstance(data, ArraySet)
    return data.images[:, 0].numpy(), data.labels.numpy()


def write_table(
    file: Path, header: Sequence[str], rows: Iterable[tuple[Grey, Sequence[object]]]
) -> None:
    """PNG files in a folder of the table's name, and the table."""
    folder = file.parent / file.stem
    folder.mkdir(parents=True)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", *header])
        for number, (pixels, cells) in enumerate(rows):
            name = f"{file.stem}/{number:04}.png"
            Image.fromarray(pixels).save(file.parent / name)
            writer.writerow([name, *cells])


def write_pairs(folder: Path, counts: dict[str, int]) -> None:
    """Two of the digits 0 to 4 side by side: labels are the digits, one or two of them."""
    for split, count in counts.items():
        images, numbers = digits(split)
        few = np.flatnonzero(numbers < 5)
        draw = np.random.default_rng(len(split))
        pairs = draw.choice(few, (count, 2))
        rows = (
            (np.hstack(images[pair]), [";".join(sorted({str(n) for n in numbers[pair]}))])
            for pair in pairs
        )
        write_table(folder / f"{split}.csv", ["labels"], rows)


def write_angles(folder: Path, counts: dict[str, int]) -> None:
    """A seven, turned by an angle of -60 to 60 degrees, which is the value."""
    for split, count in counts.items():
        images, numbers = digits(split)
        draw = np.random.default_rng(len(split))
        chosen = draw.choice(np.flatnonzero(numbers == 7), count)
        angles = draw.uniform(-60, 60, count)
        rows = ((_turned(images[i], a), [f"{a:.2f}"]) for i, a in zip(chosen, angles, strict=True))
        write_table(folder / f"{split}.csv", ["value"], rows)


def _turned(digit: Grey, degrees: float) -> Grey:
    large = Image.fromarray(digit).resize((16, 16), Image.Resampling.BICUBIC)
    return np.asarray(large.rotate(degrees, Image.Resampling.BICUBIC))


def eights(split: str, ratio: int = 20) -> ArraySet:
    """Eights and other digits; for training, eights are so many times rarer."""
    source = open_data("digits")
    assert source.open_test is not None
    data = source.open_train() if split == "train" else source.open_test()
    assert isinstance(data, ArraySet)
    rare = data.labels == 8
    few = rare.nonzero()[: int((~rare).sum()) // ratio if split == "train" else None, 0]
    kept = torch.cat([(~rare).nonzero()[:, 0], few])
    return ArraySet(images=data.images[kept], labels=rare[kept].long())
