"""The safetensors format, read and written one tensor at a time.

Eight bytes of header length, a JSON header of dtype, shape and offsets, then the numbers.
Reading by offset instead of mapping the file keeps one copy of the weights in memory.
"""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError
from vitlab.weights.formats.rules import Shape

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_LIMIT = 100_000_000
"""Maximum bytes of the header, as in the format's own library."""

Load = Callable[[str], Tensor]


def read_safetensors_header(
    path: Path,
) -> tuple[dict[str, Shape], dict[str, str], Load, Callable[[], None]]:
    """Shapes, metadata, a reader and a closer of a file whose header has been checked."""
    file = path.open("rb")
    try:
        header, start = _header(file, path.stat().st_size)
        metadata = header.pop("__metadata__", {})
        entries = _entries(header, path.stat().st_size - start)
    except BaseException:
        file.close()
        raise

    def load(name: str) -> Tensor:
        dtype, shape, begin, end = entries[name]
        file.seek(start + begin)
        buffer = bytearray(end - begin)
        if file.readinto(buffer) != len(buffer):
            raise WeightsError(f"ends inside tensor {name!r}")
        if not buffer:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(buffer, dtype=dtype).reshape(shape)

    shapes = {name: shape for name, (_, shape, _, _) in entries.items()}
    return shapes, {k: v for k, v in metadata.items() if isinstance(v, str)}, load, file.close


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(file.read(8), "little")
    if length > min(HEADER_LIMIT, size - 8):
        raise WeightsError(
            f"not safetensors, or truncated: a header of {length} bytes in a file of {size}"
        )
    try:
        header = parse_json(file.read(length))
    except ConfigError as error:
        raise WeightsError(f"not safetensors: the header is no JSON ({error})") from error
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise WeightsError("not safetensors: the header is no JSON object")
    return header, 8 + length


def _entries(header: dict[str, Any], size: int) -> dict[str, tuple[torch.dtype, Shape, int, int]]:
    """Each tensor's dtype, shape and bytes, which must fill the file without gap or overlap."""
    entries = {}
    for name, entry in header.items():
        try:
            shape = tuple(map(_integer, entry["shape"]))
            begin, end = map(_integer, entry["data_offsets"])
            dtype_name = str(entry["dtype"])
        except (KeyError, TypeError, ValueError):
            raise WeightsError(f"damaged header: tensor {name!r} is described wrongly") from None
        if dtype_name not in DTYPES:
            raise WeightsError(
                f"tensor {name!r} has dtype {dtype_name}; valid: {', '.join(DTYPES)}"
            )
        dtype = DTYPES[dtype_name]
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != end - begin:
            raise WeightsError(
                f"damaged header: tensor {name!r} of {dtype_name} {shape} has {end - begin} bytes"
            )
        entries[name] = (dtype, shape, begin, end)
    last = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != last:
            raise WeightsError(f"damaged header: tensor {name!r} starts at {begin}, not {last}")
        last = end
    if last != size:
        found = "truncated" if last > size else "damaged"
        raise WeightsError(f"{found}: {size} bytes of tensors, the header says {last}")
    return entries


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def write_safetensors(
    file: BinaryIO,
    layout: Iterable[tuple[str, torch.dtype, Shape]],
    tensors: Iterable[tuple[str, Tensor]],
    metadata: dict[str, str],
) -> None:
    """Write the header from the shapes alone; then each tensor as it arrives."""
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape in layout:
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, tensor in tensors:
        file.write(raw_bytes(tensor).data)


def raw_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Raw bytes of a tensor, not copied."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw
