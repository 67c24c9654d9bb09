"""How much memory a model takes for what it computes."""

import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitlab.models.flops import image_shape
from vitlab.models.vit import logits_of


def largest_output(model: nn.Module) -> int:
    """Bytes of the largest tensor that any part of the model returns for one image."""
    image = _blank(model)
    sizes = [image.nbytes]

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.nbytes)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with torch.inference_mode():
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def peak_bytes(model: nn.Module) -> int:
    """Bytes of all that is in memory at once while one image is computed, the weights left out."""
    image = _blank(model)
    with torch.inference_mode(), PeakMemory() as memory:
        logits_of(model)(image)
    return image.nbytes + memory.peak


class Footprint:
    """What one image takes in a model, measured when it is first asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._form = _form(model)

    def is_of(self, model: nn.Module) -> bool:
        """Whether this is the model that was measured, as it was then."""
        return model is self._model and _form(model) == self._form

    @cached_property
    def largest_output(self) -> int:
        """As the function of this name."""
        return largest_output(self._model)

    @cached_property
    def peak_bytes(self) -> int:
        """As the function of this name."""
        return peak_bytes(self._model)


def _form(model: nn.Module) -> tuple[Any, ...]:
    """What decides the sizes of results: those of images and weights, their type and place."""
    weights = ((weight.shape, weight.dtype, weight.device) for weight in model.parameters())
    return (image_shape(model), *weights)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _blank(model: nn.Module) -> Tensor:
    parameter = next(model.parameters())
    return torch.zeros(1, *image_shape(model), dtype=parameter.dtype, device=parameter.device)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of what operations made and nobody has let go of, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {s._cdata for s in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given | self._alive:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
