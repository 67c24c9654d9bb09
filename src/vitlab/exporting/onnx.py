"""ONNX files: input `images`, output `logits`, everything else that a user needs in the metadata.

torch's exporter converts the graph traced by `torch.export`; see `program`.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from vitlab.errors import MissingExtra
from vitlab.exporting.program import BATCH, INPUT, OUTPUT, quiet

# Weights of an ONNX graph stored in 16 bits: half of the file size, and the same computation.

LEAST = 1024
"""Minimum size of a converted tensor; norms and biases are smaller, and stay unchanged."""


def store_in_half(model: Any, *, exact: bool = False) -> None:
    """Replace the large float32 weights of an `onnx_ir` model by float16 and a cast.

    Runtimes fold the casts when they load the file. Values that 16 bits cannot hold stay; with
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


Half = Literal["all", "exact"]
NEEDED = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20
"""First version of ONNX that has GELU as one operation."""
ANY_SIZE = 2**62
LARGEST = 1_900_000_000
"""Maximum bytes of weights in one file; the format ends at two gibibytes."""


def can_export() -> bool:
    """True if the extra is installed."""
    return all(find_spec(name) is not None for name in NEEDED)


def exportable(weights: Path) -> bool:
    """True if these weights can become one ONNX file here."""
    return can_export() and weights.stat().st_size <= LARGEST


def require_onnx() -> None:
    """Raise with the package to install if it is missing."""
    if not can_export():
        raise MissingExtra("export", "an ONNX file")


def write_onnx(
    program: ExportedProgram, path: Path, metadata: Mapping[str, str], *, half: Half | None = None
) -> None:
    """Write the graph; weights beyond the limit of one file go beside it, to `PATH.data`.

    With `half`, weights are stored in 16 bits and become 32 bits again when the file is loaded:
    all of them, or those that 16 bits hold exactly.
    """
    dynamic = any(not isinstance(size, int) for size in program_shape(program))
    shapes = ({0: BATCH},) if dynamic else None
    with quiet(), _silent(), torch.no_grad():
        exported: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=shapes,
            verbose=False,
        )
        model = exported.model
        _fold(model)
    _forget_origins(model)
    if half is not None:
        store_in_half(model, exact=half == "exact")
    model.metadata_props.update(metadata)
    model.producer_name, model.graph.name = "vitlab", "vitlab"
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    exported.save(path, external_data=too_large(weights))


def too_large(weights: int) -> bool:
    """True if this many bytes of weights must lie beside the file."""
    return weights > LARGEST


def data_beside(path: Path) -> Path:
    """Path of weights beside the file."""
    return path.with_name(f"{path.name}.data")


def _fold(model: Any) -> None:
    """Fold constants: results that depend on weights only, of any size."""
    from onnxscript import optimizer

    optimizer.fold_constants(
        model, input_size_limit=ANY_SIZE, output_size_limit=ANY_SIZE, onnx_shape_inference=False
    )
    optimizer.remove_unused_nodes(model)


def program_shape(program: ExportedProgram) -> tuple[Any, ...]:
    """Shape of the images; symbolic where it may vary."""
    node = next(n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs)
    return tuple(node.meta["val"].shape)


def _forget_origins(model: Any) -> None:
    """Remove the exporter's notes on every node: lines of source, paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the exporter's own progress on standard output and in the log."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
