"""Fashion-MNIST (arXiv:1708.07747) in its own format, idx, plain or compressed with gzip."""

import gzip
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.datasets import Dataset, DataSource, Mirror, StoredFile
from vitlab.data.images import ArraySet
from vitlab.data.sources.mirrors import apt_download, deb_data, gunzip, members, readable
from vitlab.errors import DataError
from vitlab.io.download import Progress, RemoteFile, download

NAMES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
LABELS = tuple(NAMES.split(", "))
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FILES = tuple(
    StoredFile(name=name, size=size, checksum=f"md5:{md5}")
    for name, size, md5 in (
        (TRAIN[0], 47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        (TRAIN[1], 60_008, "9018921c3c673c538a1fc5bad174d6f9"),
        (TEST[0], 7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
        (TEST[1], 10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
    )
)
PACKED = (
    (TRAIN[0], 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (TRAIN[1], 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (TEST[0], 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (TEST[1], 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
"""Files on the official server: name, bytes and sha256, each with `.gz`."""
SERVERS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
DEBIAN_PACKAGE = "dataset-fashion-mnist=0.0~git20200523.55506a9-1"
DEBIAN = StoredFile(
    name="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    size=30_900_652,
    checksum="sha256:39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
DEBIAN_SIZES = (26_421_856, 29_491, 4_422_079, 5_125)
"""Bytes of the four files there: the same data, compressed differently."""
SHAPE = (28, 28)
MAGIC = {1: 0x0801, 3: 0x0803}
"""First bytes of an idx file of bytes, by the number of its axes."""


def open_fashion(folder: Path) -> DataSource:
    """Fashion-MNIST from a folder with its four files."""
    return DataSource(
        name="fashion-mnist",
        labels=LABELS,
        channels=1,
        image_size=SHAPE,
        open_train=partial(_read, folder, *TRAIN),
        open_test=partial(_read, folder, *TEST),
        tested=10_000,
        mean=(0.28604,),
        std=(0.35302,),
    )


def _read(folder: Path, images: str, labels: str) -> ArraySet:
    pixels = torch.from_numpy(read_idx(folder / images, axes=3))
    classes = torch.from_numpy(read_idx(folder / labels, axes=1)).long()
    if len(pixels) != len(classes) or not len(classes) or int(classes.max()) >= len(LABELS):
        raise DataError(f"{folder}: {images} and {labels} do not belong together")
    if pixels.shape[1:] != SHAPE:
        raise DataError(
            f"{folder / images} has images of {tuple(pixels.shape[1:])}; valid: {SHAPE}"
        )
    return ArraySet(images=pixels[:, None], labels=classes)


def read_idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Bytes of an idx file with `axes` axes, from the plain file or the one with `.gz`."""
    if path.exists():
        content = path.read_bytes()
    else:
        path = path.with_name(path.name + ".gz")
        with readable(str(path)), gzip.open(path) as file:
            content = file.read()
    start = 4 + 4 * axes
    if len(content) < start or int.from_bytes(content[:4], "big") != MAGIC[axes]:
        raise DataError(f"{path} is not an idx file of bytes with {axes} axes")
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    values = np.frombuffer(bytearray(content[start:]), np.uint8)
    if values.size != math.prod(shape):
        raise DataError(f"{path} has {values.size} values, its header says {shape}")
    return values.reshape(shape)


def server_mirror(server: str) -> Mirror:
    """A server with the four official files."""
    remotes = [
        RemoteFile(url=f"{server}{name}.gz", size=size, checksum=f"sha256:{sha256}")
        for name, size, sha256 in PACKED
    ]

    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        for file, remote in zip(FILES, remotes, strict=True):
            gunzip(download(remote, work, progress), ready / file.name, limit=file.size)

    return Mirror(name=remotes[0].host, deliver=deliver)


def deliver_from_debian(work: Path, ready: Path, progress: Progress) -> None:
    """Extract the dataset's files from the package dataset-fashion-mnist."""
    names = [f"{file.name}.gz" for file in FILES]
    sizes = dict(zip(names, DEBIAN_SIZES, strict=True))
    with deb_data(apt_download(DEBIAN_PACKAGE, DEBIAN, work, progress)) as tar:
        for name, packed in members(tar, sizes):
            (work / name).write_bytes(packed.read())
    for name, file in zip(names, FILES, strict=True):
        if not (work / name).is_file():
            raise DataError(f"{DEBIAN.name} does not hold {name}")
        gunzip(work / name, ready / file.name, limit=file.size)


FASHION_MNIST = Dataset(
    name="fashion-mnist",
    title="28 x 28 grey images of clothes, from Zalando",
    licence="MIT",
    classes=10,
    images=(60_000, 10_000),
    open=open_fashion,
    files=FILES,
    folders=("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    suffixes=("", ".gz"),
    mirrors=(
        *map(server_mirror, SERVERS),
        Mirror(name="apt", deliver=deliver_from_debian),
    ),
)
