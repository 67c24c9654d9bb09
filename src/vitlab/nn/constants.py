"""Constant tensors (masks, coordinates) computed once per shape and device, outside of autograd."""

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
LIMIT = 64


def constant(build: Callable[..., T]) -> Callable[..., T]:
    """Cache the results of `build` by its hashable arguments.

    Parameters are learned; these tensors follow from the configuration and are therefore not
    buffers: a model built on `meta` needs nothing but its weights.
    """
    cache: OrderedDict[Any, T] = OrderedDict()

    @wraps(build)
    def cached(*args: Any) -> T:
        # During export, a tensor that is already computed becomes a constant of the graph.
        if torch.compiler.is_compiling() and not (torch.compiler.is_exporting() and args in cache):
            return build(*args)
        if args in cache:
            cache.move_to_end(args)
            return cache[args]
        with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
            result = build(*args)
        if _is_real(result):
            cache[args] = result
            if len(cache) > LIMIT:
                cache.popitem(last=False)
        return result

    return cached


def _is_real(result: Any) -> bool:
    """False for the fake tensors of tracing, which must not outlive their trace."""
    if isinstance(result, tuple | list):
        return all(_is_real(part) for part in result)
    return not isinstance(result, Tensor) or type(result) is Tensor
