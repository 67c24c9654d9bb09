"""The metadata of an ONNX file, read without any runtime: the weights are passed over.

A file is a `ModelProto` of protocol buffers: fields of a number, a kind and a value.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from vitlab.errors import WeightsError
from vitlab.weights.reading import reading

METADATA = 14
"""Number of `ModelProto.metadata_props`, whose entries have a key (1) and a value (2)."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST = 16 << 20
"""Bytes that an entry may have."""


def read_metadata(path: Path) -> dict[str, str]:
    """What the file says of itself, by key."""
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = {}
        for number, length in _fields(file, size):
            if number != METADATA:
                continue
            if length > LONGEST:
                raise WeightsError(f"metadata of {length} bytes; valid: at most {LONGEST}")
            end = file.tell() + length
            entry = {part: file.read(count).decode() for part, count in _fields(file, end)}
            found[entry.get(1, "")] = entry.get(2, "")
        return found


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """Number and length of each field of bytes up to `end`; what is not read is passed over."""
    while file.tell() < end:
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _varint(file)
            continue
        lengths = {FIXED64: 8, FIXED32: 4}
        if kind != BYTES and kind not in lengths:
            raise WeightsError("not an ONNX file")
        length = _varint(file) if kind == BYTES else lengths[kind]
        after = file.tell() + length
        if after > end:
            raise WeightsError("truncated, or not an ONNX file")
        if kind == BYTES:
            yield number, length
        file.seek(after)


def _varint(file: BinaryIO) -> int:
    value = 0
    for place in range(10):
        byte = file.read(1)
        if not byte:
            raise WeightsError("truncated, or not an ONNX file")
        value |= (byte[0] & 127) << (7 * place)
        if byte[0] < 128:
            return value
    raise WeightsError("not an ONNX file")
