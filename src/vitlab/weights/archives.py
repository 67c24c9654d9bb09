"""NumPy's `.npz`, read and written one array at a time, never with pickled objects."""

import math
import pickle
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import WeightsError, damage_as, one_line
from vitlab.weights.formats.rules import Shape

Load = Callable[[str], Tensor]
DAMAGED = "truncated or damaged"
BFLOAT16 = np.dtype("V2")
"""NumPy has no bfloat16: JAX's arrays are stored as two bytes without meaning."""


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
    """Write each array as it arrives, uncompressed as in `numpy.savez`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.comment = comment
        for name, tensor in tensors:
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            array = np.ascontiguousarray(tensor.detach().cpu().numpy())
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


# Files of `torch.save`, opened without running pickled code.

NESTED = (
    *("state_dict", "model", "model_state", "model_state_dict", "teacher", "model_ema", "net"),
    *("target_encoder", "encoder", "module"),  # MSN, I-JEPA, EVA
)
"""Keys of the weights in the `.pth` files of training scripts, most trusted first."""
LEVELS = 8
"""Levels of dictionaries that are searched: one that contains itself is endless."""
MAPPED_LIMIT = 64 << 20
"""Bytes read before a mapping is renewed, which releases its memory."""


class TorchState:
    """The dictionary of tensors in a file; zip files are mapped, older ones read whole."""

    def __init__(self, path: Path, *, mmap: bool) -> None:
        self.path, self.mmap = path, mmap
        self._touched = 0
        self._state, content = self._open()
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._state.items()}
        self.strings = {
            name: value
            for name, value in content.items()
            if isinstance(name, str) and isinstance(value, str)
        }
        """Text values in the file."""

    def read(self, name: str) -> Tensor:
        """One tensor, in its own memory."""
        if self.mmap and self._touched > MAPPED_LIMIT:
            self._state.clear()
            self._state, _ = self._open()
            self._touched = 0
        tensor = self._state[name].detach()
        self._touched += tensor.numel() * tensor.dtype.itemsize
        return tensor.clone(memory_format=torch.contiguous_format)

    def close(self) -> None:
        """Release the tensors, and the mapping with them."""
        self._state.clear()

    def _open(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        content = self._load()
        if not isinstance(content, dict):
            raise WeightsError(f"holds a {type(content).__name__}, not a dictionary of tensors")
        return find_state(content), content

    def _load(self) -> Any:
        """Content read by torch; damaged bytes raise exceptions of nearly any kind."""
        try:
            return torch.load(self.path, map_location="cpu", weights_only=True, mmap=self.mmap)
        except (pickle.UnpicklingError, OSError, EOFError, MemoryError):
            raise  # `reading` has a better message for these
        except Exception as error:
            if "TorchScript" in str(error):
                raise WeightsError(
                    "a TorchScript archive, as that of CLIP by OpenAI: refused, it holds code; "
                    "valid: torch.save(torch.jit.load(FILE).state_dict(), NEW_FILE)"
                ) from error
            raise WeightsError(f"not a readable weight file ({one_line(error)})") from error


def find_state(content: dict[Any, Any]) -> dict[str, Tensor]:
    """Dictionary of tensors inside the content saved by a training script."""
    state = _search(content)
    if state is not None:
        return state
    names = [repr(name)[:40] for name in content if isinstance(name, str)]
    keys = ", ".join(names[:5]) or "no names"
    raise WeightsError(
        f"no dictionary of tensors under {keys}; looked for one under {', '.join(NESTED)}"
    )


def _search(content: dict[Any, Any], levels: int = LEVELS) -> dict[str, Tensor] | None:
    """Dictionary under a known key, else the tensors here: beside weights, those are metrics."""
    for key in NESTED:
        inner = content.get(key)
        if levels and isinstance(inner, dict):
            found = _search(inner, levels - 1)
            if found is not None:
                return found
    state = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    return state if state and all(isinstance(name, str) for name in state) else None
