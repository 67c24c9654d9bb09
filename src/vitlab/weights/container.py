"""Weight files, opened by content and read one tensor at a time.

Every damage is a `WeightsError` that names the file and says what was found. Nothing is ever
unpickled beyond what torch's `weights_only` allows.
"""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from vitlab.errors import WeightsError, damage_as
from vitlab.weights.npz import DAMAGED, read_npz_header
from vitlab.weights.reading import reading
from vitlab.weights.rules import Shape
from vitlab.weights.safetensors import read_safetensors_header
from vitlab.weights.torch_state import TorchState

ZIP, PICKLE = b"PK\x03\x04", b"\x80"
CONFIG_KEY = "vitlab"
"""Where our config is: in the metadata of safetensors, or beside the weights in a `.pth`."""
NOTE_KEY, NOTE = "vitlab note", b"vitlab "
"""What tensors leave open: how the comment of a foreign `.npz` or `.pth` archive begins."""
NOTE_LIMIT = 0xFFFF
"""Bytes that the comment of a zip archive may have."""


@dataclass(kw_only=True)
class TensorFile:
    """Names and shapes of a file, and a way to read each tensor into memory of its own."""

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
        """Let go of the file."""
        self.release()


def open_tensors(path: Path) -> TensorFile:
    """The tensors of one file, recognised by its first bytes and not by its name."""
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
    shapes, metadata, load, release = read_safetensors_header(path)
    return TensorFile(path=path, shapes=shapes, load=load, metadata=metadata, release=release)


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
