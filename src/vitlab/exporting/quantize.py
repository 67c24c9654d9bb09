"""Quantise an ONNX file to 8-bit weights and activations, by one policy.

Quantised: the products of tokens and weights, in encoder blocks and attention pooling. Kept in
float: the first layer and the head, where errors weigh most, and the products of attention, which
have no weights. `Policy` holds the details; `benchmarks/quantize.py` compares others.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import ConfigError, MissingExtra
from vitlab.exporting.onnx import data_beside, too_large
from vitlab.exporting.program import INPUT, quiet

Pixels = NDArray[np.uint8] | NDArray[np.float32]
"""A batch of images in the input format of the file."""
KINDS = ["MatMul"]
"""Operations that are quantised; the head is a `Gemm`, the first layer a `Conv`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Settings of the quantisation of weights."""

    signed: bool = True
    per_channel: bool = True
    """One scale per output channel instead of one for all."""
    reduce_range: bool = True
    """Seven bits: without VNNI instructions two products are added in 16 bits, which 8 overflow."""


POLICY = Policy()


def write_int8(
    path: Path,
    metadata: Mapping[str, str],
    images: Iterable[Pixels] | None = None,
    *,
    policy: Policy = POLICY,
) -> None:
    """Quantise an ONNX file in place: statically if calibration images are given."""
    import onnx

    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        source, target = Path(folder) / path.name, Path(folder) / f"int8.{path.name}"
        large = data_beside(path).exists()
        for file in (path, data_beside(path)) if large else (path,):
            file.rename(source.with_name(file.name))
        model = onnx.load(str(source), load_external_data=False)
        _forget_shapes(model)
        onnx.save(model, str(source))
        kept = _kept(model)
        if all(node.name in kept for node in model.graph.node if node.op_type in KINDS):
            raise ConfigError(
                "quantize int8 is for products of tokens and weights, and this model has none; "
                "valid: a Vision Transformer, or fp16"
            )
        with quiet(), _silent():
            if images is None:
                _quantize_dynamic(source, target, kept, policy, large=large)
            else:
                _quantize_static(source, target, kept, policy, images, large=large)
        model = onnx.load(str(target))
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, dict(metadata))
    model.producer_name = "vitlab"
    _save(model, path)


def _save(model: Any, path: Path) -> None:
    """Write the model; weights beyond the limit of one file go beside it."""
    import onnx

    weights = sum(tensor.ByteSize() for tensor in model.graph.initializer)
    if too_large(weights):
        onnx.save(model, str(path), save_as_external_data=True, location=data_beside(path).name)
    else:
        onnx.save(model, str(path))


def _quantize_dynamic(
    source: Path, target: Path, kept: list[str], policy: Policy, *, large: bool
) -> None:
    """Quantise weights to 8 bits; activations are measured again for every batch."""
    tools = _tools()
    tools.quantize_dynamic(
        source,
        target,
        op_types_to_quantize=KINDS,
        nodes_to_exclude=kept,
        per_channel=policy.per_channel,
        reduce_range=policy.reduce_range,
        weight_type=tools.QuantType.QInt8 if policy.signed else tools.QuantType.QUInt8,
        use_external_data_format=large,
    )


def _quantize_static(
    source: Path,
    target: Path,
    kept: list[str],
    policy: Policy,
    images: Iterable[Pixels],
    *,
    large: bool,
) -> None:
    """Quantise weights to 8 bits, and activations by their ranges on calibration images."""
    tools = _tools()
    tools.quantize_static(
        source,
        target,
        _Reader(iter(images)),
        op_types_to_quantize=KINDS,
        nodes_to_exclude=kept,
        per_channel=policy.per_channel,
        reduce_range=policy.reduce_range,
        activation_type=tools.QuantType.QUInt8,
        weight_type=tools.QuantType.QInt8 if policy.signed else tools.QuantType.QUInt8,
        calibrate_method=tools.CalibrationMethod.MinMax,
        use_external_data_format=large,  # also for the copy used in calibration
        # A rounded output would be rounded again by the next layer, and gains no speed.
        extra_options={"OpTypesToExcludeOutputQuantization": KINDS},
    )


class _Reader:
    """Calibration images in the interface of ONNX Runtime."""

    def __init__(self, images: Iterator[Any]) -> None:
        self._images = images

    def get_next(self) -> dict[str, Any] | None:
        found = next(self._images, None)
        return None if found is None else {INPUT: found}


def _kept(model: Any) -> list[str]:
    """Names of the nodes kept in float: products of two activations, and the head."""
    weights = {tensor.name for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMul"]
    kept = [node.name for node in products if node.input[1] not in weights]
    # ONNX Runtime converts every Gemm to a MatMul before it quantises.
    return kept + [f"{n.name}_MatMul" for n in model.graph.node if n.op_type == "Gemm"]


def _forget_shapes(model: Any) -> None:
    """Remove noted shapes of weights: ONNX Runtime transposes some, and then finds two shapes."""
    weights = {tensor.name for tensor in model.graph.initializer}
    noted = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(noted)


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the advice that ONNX Runtime logs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _tools() -> Any:
    try:
        import onnxruntime.quantization
    except ImportError:
        raise MissingExtra("export", "quantisation") from None
    return onnxruntime.quantization
