"""What an exported model says of itself in its metadata; read without torch."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import VitlabError, WeightsError
from vitlab.weights.bundle_files import checked_content
from vitlab.weights.reading import reading

CONFIG_KEY, FACTS_KEY = "vitlab", "vitlab_export"
"""Metadata: what a bundle's `config.json` says, and `Facts`."""
Quantized = Literal["int8", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What an engine must know of an exported model besides its config."""

    weights: str | None
    """SHA-256 of the `model.safetensors` that it was made of; None: it came of no bundle."""
    preprocess_inside: bool
    """The model takes 8-bit pixels and normalises them itself."""
    quantize: Quantized | None
    zero_head: bool
    """Every number of the head is zero: it has not been trained."""
    batch: int | None
    """Images at once; None: any number."""
    output_bytes: int
    """Of the largest intermediate result for one image."""
    peak_bytes: int
    """Of all that is in memory at once for one image, the weights left out."""
    weight_bytes: int
    """Of the weights, as they are computed with."""
    merge_tokens: int = 0
    """Tokens that are merged in each block."""
    network: str | None = None
    """`network_digest` of what it was made of, before anything was quantised or merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployed:
    """The metadata of an exported model."""

    config: Mapping[str, Any]
    facts: Facts

    def metadata(self) -> dict[str, str]:
        """As text under the keys of the file's metadata."""
        return {
            CONFIG_KEY: json.dumps(dict(self.config)),
            FACTS_KEY: json.dumps(to_dict(self.facts)),
        }


def read_deployed(metadata: Mapping[str, str], name: str) -> Deployed:
    """The metadata of the file of this name; WeightsError where it was not exported by vitlab."""
    if not {CONFIG_KEY, FACTS_KEY} <= set(metadata):
        raise WeightsError(
            f"{name}: no labels and preprocessing in its metadata; valid: what `vitlab export` "
            f"writes"
        )
    try:
        config = parse_json(metadata[CONFIG_KEY])
        facts = from_dict(Facts, parse_json(metadata[FACTS_KEY]))
    except (ValueError, VitlabError) as error:
        raise WeightsError(f"{name}: damaged metadata ({error})") from error
    return Deployed(config=checked_content(config, f"{name}: metadata"), facts=facts)


# The metadata of an ONNX file, read without any runtime: the weights are passed over.
#
# A file is a `ModelProto` of protocol buffers: fields of a number, a kind and a value.

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
