"""Weight files, recognised by content and read one tensor at a time.

Every damage is a `WeightsError` with the file and the fault. Nothing is ever unpickled beyond what
torch's `weights_only` allows.
"""

import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitlab.errors import WeightsError, damage_as, one_line
from vitlab.weights.archives import DAMAGED, TorchState, read_npz_header
from vitlab.weights.bundle import WEIGHTS, check_bundle_file, is_bundle, read_bundle_config
from vitlab.weights.formats.rules import Shape
from vitlab.weights.reading import SUFFIXES, read_json, reading

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
"""Names of the supported dtypes in safetensors files."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_LIMIT = 100_000_000
"""Maximum bytes of a safetensors header, as in the library."""


def write_safetensors(
    file: BinaryIO,
    layout: Iterable[tuple[str, torch.dtype, Shape]],
    tensors: Iterable[tuple[str, Tensor]],
    metadata: dict[str, str],
) -> None:
    """Write the header from the shapes alone; then each tensor as it arrives.

    The library's writer needs all converted tensors at once, and writes metadata in random order:
    equal models would get different digests.
    """
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


ZIP, PICKLE = b"PK\x03\x04", b"\x80"
CONFIG_KEY = "vitlab"
"""Key of the config: in the metadata of safetensors, or beside the weights in a `.pth`."""
NOTE_KEY, NOTE = "vitlab note", b"vitlab "
"""Values that tensors do not contain: the prefix of the comment of a `.npz` or `.pth` archive."""
NOTE_LIMIT = 0xFFFF
"""Maximum bytes of the comment of a zip archive."""


@dataclass(kw_only=True)
class TensorFile:
    """Names and shapes of a file, and a reader of single tensors into their own memory."""

    path: Path
    shapes: dict[str, Shape]
    load: Callable[[str], Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    release: Callable[[], None] = lambda: None

    def read(self, name: str) -> Tensor:
        """One tensor, as stored."""
        with reading(self.path):
            return self.load(name)

    def close(self) -> None:
        """Close the file."""
        self.release()


def given_tensors(state: Mapping[str, Any]) -> TensorFile:
    """Tensors of a state dict in memory; each is copied when it is read."""
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise WeightsError(
                f"state dict: {name!r} is a {type(tensor).__name__}; valid: tensors by name, "
                f"as `model.state_dict()` returns them"
            )
    return TensorFile(
        path=Path("state_dict"),
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        load=lambda name: state[name].detach().cpu().clone(),
    )


def open_tensors(path: Path) -> TensorFile:
    """Tensors of one file, recognised by its first bytes and not by its name."""
    with reading(path):
        with path.open("rb") as file:
            start = file.read(512)
        if start[:4] == ZIP:
            return _open_zip(path)
        if start[8:9] == b"{":
            return _open_safetensors(path)
        if start[:1] == PICKLE and len(start) > 1 and start[1] in (2, 3, 4, 5):
            return _open_torch(path, {}, mmap=False)
        raise WeightsError(f"not a weight file: {_describe(start)}; {KNOWN}")


KNOWN = "valid contents: safetensors, .npz, .pth of torch.save"


def _open_zip(path: Path) -> TensorFile:
    with damage_as(WeightsError, DAMAGED), zipfile.ZipFile(path) as archive:
        members, comment = archive.namelist(), archive.comment
    note = {NOTE_KEY: comment.removeprefix(NOTE).decode()} if comment.startswith(NOTE) else {}
    if any(name.endswith("data.pkl") for name in members):
        return _open_torch(path, note, mmap=True)
    if any(name.endswith(".npy") for name in members):
        shapes, load, release = read_npz_header(path)
        return TensorFile(path=path, shapes=shapes, load=load, metadata=note, release=release)
    raise WeightsError(f"a zip archive without tensors; {KNOWN}")


def _open_safetensors(path: Path) -> TensorFile:
    """Tensors of a memory-mapped safetensors file, whose header the library has checked."""
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise WeightsError(_fault(path, error)) from error
    shapes = {}
    with ExitStack() as stack:
        stack.enter_context(file)
        for name in file.offset_keys():
            entry = file.get_slice(name)
            if entry.get_dtype() not in DTYPES:
                raise WeightsError(
                    f"tensor {name!r} has dtype {entry.get_dtype()}; valid: {', '.join(DTYPES)}"
                )
            shapes[name] = tuple(entry.get_shape())
        release = stack.pop_all().close

    def load(name: str) -> Tensor:
        return _copied(file.get_tensor(name))

    return TensorFile(
        path=path, shapes=shapes, load=load, metadata=file.metadata() or {}, release=release
    )


def _copied(mapped: Tensor) -> Tensor:
    """Aligned copy in memory of its own; one thread is faster than torch's for small tensors."""
    if not mapped.numel():
        return torch.empty_like(mapped)
    return torch.frombuffer(bytearray(raw_bytes(mapped).data), dtype=mapped.dtype).view_as(mapped)


def _fault(path: Path, error: SafetensorError) -> str:
    """Fault of a file that the library refuses; its messages do not name truncation."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(HEADER_LIMIT, size - 8):
            return f"not safetensors, or truncated: a header of {length} bytes in a file of {size}"
        header = file.read(length)
    ends = re.findall(rb'"data_offsets":\s*\[\s*\d+\s*,\s*(\d{1,18})\s*\]', header)
    found, stated = size - 8 - length, max(map(int, ends), default=0)
    if ends and stated != found:
        kind = "truncated" if stated > found else "damaged"
        return f"{kind}: {found} bytes of tensors, the header says {stated}"
    reason = one_line(error).removeprefix("Error while deserializing header: ")
    return f"damaged header, or not safetensors: {reason}"


def _open_torch(path: Path, note: dict[str, str], *, mmap: bool) -> TensorFile:
    state = TorchState(path, mmap=mmap)
    return TensorFile(
        path=path,
        shapes=state.shapes,
        load=state.read,
        metadata=state.strings | note,
        release=state.close,
    )


def _describe(start: bytes) -> str:
    if not start:
        return "it is empty"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the weights themselves were not downloaded"
    text = start.decode(errors="replace").lstrip()
    if "\0" in text or "\ufffd" in text[:-3]:
        return f"it starts with the bytes {start[:8].hex(' ')}"
    return "it is an HTML page" if text.startswith("<") else f"it is text ({text[:20]!r})"


# From a path to tensors under plain names: folders, shards, and the prefixes of wrappers.

PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_model.safetensors",
)
TREES = ("opt/target/", "params/")
"""Keys of the parameters in a JAX training state; other keys are not weights."""
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.[a-z]+$")
"""Number and count in the name of a shard: `model-00001-of-00003.safetensors`."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "backbone.")
BESIDE_BACKBONE = ("head.", "dino_head.", "ibot_head.")
"""Heads beside the `backbone` in the training states of DINO and DINOv2."""


def open_weights(path: Path) -> TensorFile:
    """Tensors of a file, a folder or a set of shards, without wrapping prefixes.

    The weights of a bundle are compared with their digest.
    """
    file = _find(path)
    _check_whole(file)
    if file.name == WEIGHTS and is_bundle(file.parent):
        check_bundle_file(file.parent, WEIGHTS, read_bundle_config(file.parent))
    opened = _open_shards(file) if file.name.endswith(".index.json") else open_tensors(file)
    try:
        return _unwrapped(opened)
    except BaseException:
        opened.close()
        raise


def _find(path: Path) -> Path:
    if not path.is_dir():
        with reading(path):
            path.stat()
        return path
    for name in PREFERRED:
        if (path / name).is_file():
            return path / name
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(files) != 1:
        found = ", ".join(file.name for file in files[:4]) or "none"
        raise WeightsError(
            f"{path}: a folder needs {PREFERRED[0]} or one weight file; found: {found}"
        )
    return files[0]


def _check_whole(file: Path) -> None:
    """Raise for one file of a sharded checkpoint, by its name."""
    found = SHARD.search(file.name)
    if found is not None and int(found.group(2)) > 1:
        raise WeightsError(
            f"{file}: shard {int(found.group(1))} of {int(found.group(2))} alone; valid: the "
            f"folder with all shards and their index (*.index.json)"
        )


def _open_shards(index: Path) -> TensorFile:
    """All files of an index, as one."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not _all_strings(where.values()):
        raise WeightsError(f"{index}: no weight_map of tensor names to files")
    with ExitStack() as stack:
        shards: dict[str, TensorFile] = {}
        for name in sorted({*where.values()}):
            if Path(name).name != name or "\0" in name:
                raise WeightsError(f"{index}: shard {name!r} is not a file beside the index")
            shards[name] = open_tensors(index.parent / name)
            stack.callback(shards[name].close)
        for tensor, name in where.items():
            if tensor not in shards[name].shapes:
                raise WeightsError(f"{index}: tensor {tensor!r} is missing in {name}")
        release = stack.pop_all().close

    def load(tensor: str) -> Tensor:
        return shards[where[tensor]].read(tensor)

    shapes = {tensor: shards[name].shapes[tensor] for tensor, name in where.items()}
    return TensorFile(path=index, shapes=shapes, load=load, release=release)


def _all_strings(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _unwrapped(file: TensorFile) -> TensorFile:
    names = {name: name for name in file.shapes}
    for tree in TREES:
        inside = {n.removeprefix(tree): raw for n, raw in names.items() if n.startswith(tree)}
        names = inside or names
    changed = True
    while changed:
        changed = False
        for prefix in WRAPPERS:
            bare = [name for name in names if not name.startswith(prefix)]
            alone = prefix == "backbone." and all(name.startswith(BESIDE_BACKBONE) for name in bare)
            if len(bare) < len(names) and (not bare or alone):
                names = {name.removeprefix(prefix): raw for name, raw in names.items()}
                changed = True
    if not names:
        raise WeightsError(f"{file.path}: holds no tensors")
    plain = names

    def load(name: str) -> Tensor:
        return file.load(plain[name])

    return replace(file, shapes={name: file.shapes[raw] for name, raw in names.items()}, load=load)
