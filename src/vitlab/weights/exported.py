"""Exported models: their metadata, and whether their code may run; read without torch."""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import DataError, VitlabError, WeightsError
from vitlab.io.files import file_digest, homes, writable_home
from vitlab.weights.bundle import checked_content
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
class ExportMetadata:
    """Metadata of an exported model."""

    config: Mapping[str, Any]
    facts: Facts

    def metadata(self) -> dict[str, str]:
        """Text under the keys of the file's metadata."""
        return {
            CONFIG_KEY: json.dumps(dict(self.config)),
            FACTS_KEY: json.dumps(to_dict(self.facts)),
        }


def read_export_metadata(metadata: Mapping[str, str], name: str) -> ExportMetadata:
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
    return ExportMetadata(config=checked_content(config, f"{name}: metadata"), facts=facts)


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


# AOTInductor packages, inspected before torch opens them: zip archives with machine code.
#
# torch unpickles some parts of an archive, and compiles others, for any use of it. So an archive
# must have the layout of `vitlab export --format aoti` and nothing else. The rest is machine code:
# it is run only if compiled by this user's `vitlab export`, or on request.

VARIABLE = "VITLAB_RUN_CODE"
KIND = "compiled"
"""Folder of the digests of packages that were compiled here."""
CODE = "data/aotinductor/model/"
FRAME = ("archive_format", "archive_version", "byteorder", "version", ".data/", ".format_version")
"""Further names, below the archive's own folder, that hold no more than a few bytes of text."""
LIBRARIES = (".so", ".pyd", ".dll")
MOST_PARTS, MOST_METADATA = 1_000, 16 << 20
VALID = "valid: what `vitlab export --format aoti` writes"


def read_package(path: Path) -> Mapping[str, str]:
    """Metadata of a package; raises WeightsError for anything else, without loading it."""
    try:
        with zipfile.ZipFile(path) as archive:
            library = _library(archive, path.stat().st_size)
            return _metadata(archive, library)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise WeightsError(f"{path}: not an AOTInductor package ({reason}); {VALID}") from error


def _library(archive: zipfile.ZipFile, size: int) -> str:
    """Check the names and sizes of all parts; return the name of the compiled model."""
    parts = archive.infolist()
    if len(parts) > MOST_PARTS:
        raise WeightsError(f"{len(parts):,} parts")
    for part in parts:
        _check_name(part.filename)
        if part.compress_type != zipfile.ZIP_STORED:
            raise WeightsError(f"{part.filename} is compressed")
    unpacked = sum(part.file_size for part in parts)
    if unpacked > size:
        raise WeightsError(f"{unpacked:,} bytes of parts in a file of {size:,}")
    found = [part.filename for part in parts if part.filename.endswith(LIBRARIES)]
    if len(found) != 1:
        raise WeightsError(f"{len(found)} compiled models")
    return found[0]


def _check_name(name: str) -> None:
    """Raise for paths that lead elsewhere, and for parts that torch unpickles."""
    inner = name.partition("/")[2]
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        raise WeightsError(f"a part named {name!r}")
    flat = inner.startswith(CODE) and "/" not in inner.removeprefix(CODE)
    if not (flat or inner.startswith(FRAME)) or inner.endswith((".pt", ".pkl", ".pth")):
        raise WeightsError(f"it holds {inner or name}, and reading that could run code")


def _metadata(archive: zipfile.ZipFile, library: str) -> dict[str, str]:
    name = f"{os.path.splitext(library)[0]}_metadata.json"
    if name not in archive.namelist():
        return {}
    if archive.getinfo(name).file_size > MOST_METADATA:
        raise WeightsError(f"metadata of more than {MOST_METADATA:,} bytes")
    try:
        content = json.loads(archive.read(name))
    except RecursionError:
        raise WeightsError("metadata nested too deeply") from None
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise WeightsError("metadata that is no table of text")
    return content


def check_trusted(path: Path) -> None:
    """Raise for machine code that this user did not compile, unless VITLAB_RUN_CODE is 1."""
    setting = os.environ.get(VARIABLE, "0")
    if setting not in ("0", "1", ""):
        raise WeightsError(f"{VARIABLE} is {setting!r}; valid: 0 or 1")
    if setting == "1":
        return
    digest = file_digest(path, "sha256")
    with suppress(DataError):  # a user without a home
        if any((home / digest).is_file() for home in homes(KIND)):
            return
    raise WeightsError(
        f"{path} is machine code that `vitlab export` did not compile for this user; "
        f"valid: a file of your own, or {VARIABLE}=1 if you trust its origin"
    )


def trust(path: Path) -> None:
    """Record a package that was just compiled here; without a writable home, do nothing."""
    with suppress(DataError, OSError):
        (writable_home(KIND) / file_digest(path, "sha256")).touch()
