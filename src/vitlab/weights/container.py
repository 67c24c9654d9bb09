"""Weight files, opened by content and read one tensor at a time.

Every damage is a `WeightsError` that names the file and says what was found. Nothing is ever
unpickled beyond what torch's `weights_only` allows.
"""

import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.npz import read_npz_header
from vitlab.weights.rules import Shape
from vitlab.weights.safetensors import read_safetensors_header

ZIP, PICKLE = b"PK\x03\x04", b"\x80"
NESTED = ("state_dict", "model", "model_state", "model_state_dict", "teacher", "model_ema", "net")
"""Where training scripts put the weights inside a `.pth`, most trusted first."""
CONFIG_KEY = "vitlab"


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


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes the readers raise, as one line about the file."""
    try:
        yield
    except WeightsError as error:
        text = str(error)
        raise WeightsError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise WeightsError(f"{path}: truncated or damaged ({_line(error)})") from error
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror or error})") from error
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: holds Python objects besides tensors; refused, since reading them could "
            f"run code"
        ) from error
    except (ValueError, RuntimeError, KeyError, TypeError, struct.error) as error:
        raise WeightsError(f"{path}: not a readable weight file ({_line(error)})") from error


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
            return _open_torch(path, mmap=False)
        raise WeightsError(f"not a weight file: {_describe(start)}; {KNOWN}")


KNOWN = "valid contents: safetensors, .npz, .pth of torch.save"


def _open_zip(path: Path) -> TensorFile:
    with zipfile.ZipFile(path) as archive:
        members = archive.namelist()
    if any(name.endswith("data.pkl") for name in members):
        return _open_torch(path, mmap=True)
    if any(name.endswith(".npy") for name in members):
        shapes, load, release = read_npz_header(path)
        return TensorFile(path=path, shapes=shapes, load=load, release=release)
    raise WeightsError(f"a zip archive without tensors; {KNOWN}")


def _open_safetensors(path: Path) -> TensorFile:
    shapes, metadata, load, release = read_safetensors_header(path)
    return TensorFile(path=path, shapes=shapes, load=load, metadata=metadata, release=release)


def _open_torch(path: Path, *, mmap: bool) -> TensorFile:
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    state, metadata = _find_state(content)

    def load(name: str) -> Tensor:
        return state[name].detach().clone(memory_format=torch.contiguous_format)

    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return TensorFile(
        path=path, shapes=shapes, load=load, metadata=metadata, release=state.clear
    )


def _find_state(content: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The dictionary of tensors inside what a training script saved."""
    if not isinstance(content, dict):
        raise WeightsError(f"holds a {type(content).__name__}, not a dictionary of tensors")
    config = content.get(CONFIG_KEY)
    metadata = {CONFIG_KEY: config} if isinstance(config, str) else {}
    state = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if state and all(isinstance(name, str) for name in state):
        return state, metadata
    for key in NESTED:
        if isinstance(content.get(key), dict):
            return _find_state(content[key])[0], metadata
    keys = ", ".join(map(repr, list(content)[:5]))
    raise WeightsError(f"no dictionary of tensors under {keys or 'no keys'}; {_nested()}")


def _nested() -> str:
    return f"looked for one under {', '.join(NESTED)}"


def _describe(start: bytes) -> str:
    if not start:
        return "it is empty"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the weights themselves were not downloaded"
    try:
        text = start.decode().lstrip()
    except UnicodeDecodeError:
        return f"it starts with the bytes {start[:8].hex(' ')}"
    return "it is an HTML page" if text.startswith("<") else f"it is text ({text[:20]!r})"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def read_json(path: Path, limit: int = 16 << 20) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    with reading(path):
        if path.stat().st_size > limit:
            raise WeightsError(f"{path.stat().st_size} bytes; valid for JSON: at most {limit}")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"not JSON ({_line(error)})") from error
        if not isinstance(content, dict):
            raise WeightsError(f"holds a {type(content).__name__}, not a JSON object")
        return content
