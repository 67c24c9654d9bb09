"""NumPy's `.npz`, read and written one array at a time, never with pickled objects."""

import math
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import WeightsError, damage_as
from vitlab.weights.rules import Shape

Load = Callable[[str], Tensor]
DAMAGED = "truncated or damaged"
BFLOAT16 = np.dtype("V2")
"""NumPy has no bfloat16: JAX's arrays come out as two bytes without meaning."""


def read_npz_header(path: Path) -> tuple[dict[str, Shape], Load, Callable[[], None]]:
    """Shapes, a reader and a closer; the arrays' headers are checked, their data is not read."""
    with damage_as(WeightsError, DAMAGED):
        archive = zipfile.ZipFile(path)
    try:
        shapes = {
            member.filename.removesuffix(".npy"): _shape(archive, member)
            for member in archive.infolist()
            if not member.filename.endswith("/")
        }
    except BaseException:
        archive.close()
        raise

    def load(name: str) -> Tensor:
        with damage_as(WeightsError, DAMAGED), archive.open(f"{name}.npy") as file:
            array = npy.read_array(file, allow_pickle=False)
        return _tensor(array, name)

    return shapes, load, archive.close


def _shape(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Shape:
    name = member.filename.removesuffix(".npy")
    what = f"{name[:200]!r} is not a NumPy array"
    with damage_as(WeightsError, what), archive.open(member) as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.hasobject:
        raise WeightsError(
            f"{name!r} holds pickled Python objects; refused, since reading them could run code"
        )
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise WeightsError(f"{name!r} is shorter than its shape {shape} says")
    return tuple(shape)


def _tensor(array: NDArray[np.generic], name: str) -> Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "fiub":
        raise WeightsError(f"{name!r} has dtype {array.dtype}; valid: numbers")
    array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=None)
    return torch.from_numpy(array).reshape(array.shape)


def write_npz(file: BinaryIO, tensors: Iterable[tuple[str, Tensor]], comment: bytes) -> None:
    """Each array as it comes, uncompressed as `numpy.savez` does it."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.comment = comment
        for name, tensor in tensors:
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            array = np.ascontiguousarray(tensor.detach().cpu().numpy())
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
