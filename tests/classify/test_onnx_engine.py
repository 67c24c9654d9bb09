"""Which runtime `auto` takes for an ONNX file."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitlab.classify.engines import runtimes as module
from vitlab.classify.engines.runtimes import STREAMED, onnx_engine
from vitlab.weights.exported import ExportMetadata, Facts

PLAIN = Facts(
    weights=None,
    preprocess_inside=False,
    quantize=None,
    zero_head=False,
    batch=None,
    output_bytes=1,
    peak_bytes=1,
    weight_bytes=STREAMED,
)
EIGHT_BITS = replace(PLAIN, quantize="int8")
HALF = replace(PLAIN, quantize="fp16")
LARGE = replace(PLAIN, weight_bytes=STREAMED + 1)
ONNX, VINO = "onnxruntime", "openvino"


@pytest.mark.parametrize(
    ("installed", "wide", "runtime", "quickly", "facts", "chosen"),
    [
        ((), True, "tuned", False, PLAIN, None),
        ((ONNX,), True, "tuned", False, PLAIN, ONNX),
        ((VINO,), False, "plain", True, LARGE, VINO),
        ((ONNX, VINO), True, "tuned", False, PLAIN, VINO),
        ((ONNX, VINO), True, "tuned", False, HALF, VINO),
        ((ONNX, VINO), False, "tuned", False, PLAIN, ONNX),
        ((ONNX, VINO), True, "plain", False, PLAIN, ONNX),
        ((ONNX, VINO), True, "tuned", True, PLAIN, ONNX),
        ((ONNX, VINO), True, "tuned", False, EIGHT_BITS, ONNX),
        ((ONNX, VINO), True, "tuned", False, LARGE, ONNX),
    ],
)
def test_what_runs_a_file(
    installed: tuple[str, ...],
    wide: bool,
    runtime: str,
    quickly: bool,
    facts: Facts,
    chosen: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr("vitlab.machine.device.wide_vectors", lambda: wide)
    monkeypatch.setenv("VITLAB_RUNTIME", runtime)
    monkeypatch.setattr(module, "read_metadata", lambda file: {})
    monkeypatch.setattr(
        module, "read_export_metadata", lambda *_: ExportMetadata(config={}, facts=facts)
    )
    assert onnx_engine(Path("a.onnx"), quickly=quickly) == chosen


def test_a_file_is_looked_at_only_where_it_matters() -> None:
    """Without AVX-512, which no test has unless it says so, nothing is read."""
    assert onnx_engine(Path("gone.onnx"), quickly=False) in (ONNX, VINO, None)
