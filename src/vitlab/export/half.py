"""Weights of an ONNX graph stored in 16 bits: half of the file, and the same computation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 1024
"""Numbers of a tensor that is worth it; norms and biases are smaller, and stay as they are."""


def store_in_half(model: Any, *, exact: bool = False) -> None:
    """Replace the large float32 weights of an `onnx_ir` model by float16 and a cast.

    Runtimes fold the casts when they load the file. Numbers that 16 bits cannot hold stay; with
    `exact`, also those that would be rounded.
    """
    import onnx_ir as ir

    graph = model.graph
    for value in list(graph.initializers.values()):
        array = value.const_value.numpy()
        if array.dtype != np.float32 or array.size < LEAST or not _fits(array, exact):
            continue
        name = value.name
        kind = ir.TensorType(ir.DataType.FLOAT16)
        half = ir.Value(name=f"{name}.half", shape=value.shape, type=kind)
        half.const_value = ir.tensor(array.astype(np.float16), name=half.name)
        cast = ir.node("Cast", [half], attributes={"to": ir.DataType.FLOAT})
        cast.outputs[0].shape, cast.outputs[0].type = value.shape, value.type
        value.replace_all_uses_with(cast.outputs[0])
        del graph.initializers[name]
        cast.outputs[0].name = name
        graph.register_initializer(half)
        graph.insert_before(graph[0], cast)


def _fits(array: NDArray[np.float32], exact: bool) -> bool:
    if np.abs(array).max() > np.finfo(np.float16).max:
        return False
    return not exact or bool((array.astype(np.float16).astype(np.float32) == array).all())
