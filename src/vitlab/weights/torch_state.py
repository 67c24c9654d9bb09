"""Files of `torch.save`, opened without running what they pickle."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError, one_line

NESTED = ("state_dict", "model", "model_state", "model_state_dict", "teacher", "model_ema", "net")
"""Where training scripts put the weights inside a `.pth`, most trusted first."""
LEVELS = 8
"""Of dictionaries that are searched: one that contains itself has no end."""
MAPPED_LIMIT = 64 << 20
"""Bytes read before a mapping is renewed, which gives its memory back."""


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
        """What else the file says in words."""

    def read(self, name: str) -> Tensor:
        """One tensor in memory of its own."""
        if self.mmap and self._touched > MAPPED_LIMIT:
            self._state.clear()
            self._state, _ = self._open()
            self._touched = 0
        tensor = self._state[name].detach()
        self._touched += tensor.numel() * tensor.dtype.itemsize
        return tensor.clone(memory_format=torch.contiguous_format)

    def close(self) -> None:
        """Let go of the tensors, and of the mapping with them."""
        self._state.clear()

    def _open(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        content = self._load()
        if not isinstance(content, dict):
            raise WeightsError(f"holds a {type(content).__name__}, not a dictionary of tensors")
        return find_state(content), content

    def _load(self) -> Any:
        """What torch reads; on damaged bytes it raises exceptions of nearly any kind."""
        try:
            return torch.load(self.path, map_location="cpu", weights_only=True, mmap=self.mmap)
        except (pickle.UnpicklingError, OSError, EOFError, MemoryError):
            raise  # `reading` has a better line for these
        except Exception as error:
            raise WeightsError(f"not a readable weight file ({one_line(error)})") from error


def find_state(content: dict[Any, Any]) -> dict[str, Tensor]:
    """The dictionary of tensors inside what a training script saved."""
    state = _search(content)
    if state is not None:
        return state
    names = [repr(name)[:40] for name in content if isinstance(name, str)]
    keys = ", ".join(names[:5]) or "no names"
    raise WeightsError(
        f"no dictionary of tensors under {keys}; looked for one under {', '.join(NESTED)}"
    )


def _search(content: dict[Any, Any], levels: int = LEVELS) -> dict[str, Tensor] | None:
    """What lies under a known key, else the tensors here: beside weights, they are of a metric."""
    for key in NESTED:
        inner = content.get(key)
        if levels and isinstance(inner, dict):
            found = _search(inner, levels - 1)
            if found is not None:
                return found
    state = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    return state if state and all(isinstance(name, str) for name in state) else None
