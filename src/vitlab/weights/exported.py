"""Metadata of exported models; read without torch."""

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
"""Metadata keys: the content of a bundle's `config.json`, and `Facts`."""
Quantized = Literal["int8", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts that an engine needs about an exported model besides its config."""

    weights: str | None
    """SHA-256 of the source `model.safetensors`; None: not exported from a bundle."""
    preprocess_inside: bool
    """The model takes 8-bit pixels and normalises them itself."""
    quantize: Quantized | None
    zero_head: bool
    """Every number of the head is zero: it has not been trained."""
    batch: int | None
    """Batch size; None: any."""
    output_bytes: int
    """Bytes of the largest intermediate result for one image."""
    peak_bytes: int
    """Peak bytes for one image, without the weights."""
    weight_bytes: int
    """Bytes of the weights, in the dtype of the computation."""
    merge_tokens: int = 0
    """Tokens that are merged in each block."""
    network: str | None = None
    """`network_digest` of the source model, before quantisation or merging."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployed:
    """Metadata of an exported model."""

    config: Mapping[str, Any]
    facts: Facts

    def metadata(self) -> dict[str, str]:
        """Text under the keys of the file's metadata."""
        return {
            CONFIG_KEY: json.dumps(dict(self.config)),
            FACTS_KEY: json.dumps(to_dict(self.facts)),
        }


def read_deployed(metadata: Mapping[str, str], name: str) -> Deployed:
    """Metadata of the file of this name; raises WeightsError if it was not exported by vitlab."""
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


# The metadata of an ONNX file, read without any runtime: the weights are skipped.
#
# A file is a `ModelProto` of protocol buffers: fields of a number, a kind and a value.

METADATA = 14
"""Number of `ModelProto.metadata_props`, whose entries have a key (1) and a value (2)."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST = 16 << 20
"""Maximum bytes of an entry."""


def read_metadata(path: Path) -> dict[str, str]:
    """Metadata of the file, by key."""
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
    """Number and length of each field of bytes up to `end`; unread fields are skipped."""
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
