"""Which of the installed runtimes runs an ONNX file best here; imports none of them."""

from importlib.util import find_spec
from pathlib import Path

from vitlab import runtime
from vitlab.weights.deployed import read_deployed
from vitlab.weights.onnx_metadata import read_metadata

ENGINES = ("onnxruntime", "openvino")
"""What runs ONNX files; the first is the usual one."""
STREAMED = 150_000_000
"""Bytes of weights beyond which OpenVINO loses against ONNX Runtime when every core has batches of
its own: ViT-S has 88 million and is 1.18 times as fast, ViT-B 346 million and 0.77 times."""


def onnx_engine(file: Path, *, quickly: bool) -> str | None:
    """What runs this file best, of what is installed; None: nothing.

    OpenVINO where it is the faster one (docs/benchmark.md), else ONNX Runtime, which also starts
    sooner: `quickly` for a single image.
    """
    installed = installed_engines()
    if len(installed) < 2:
        return next(iter(installed), None)
    wide = runtime.wide_vectors() and runtime.tuned()
    if quickly or not wide:  # whatever the file is
        return "onnxruntime"
    facts = read_deployed(read_metadata(file), str(file)).facts
    eight_bits = facts.quantize == "int8"
    streamed = facts.weight_bytes > STREAMED
    return "onnxruntime" if eight_bits or streamed else "openvino"


def installed_engines() -> tuple[str, ...]:
    """Those that can be imported."""
    return tuple(name for name in ENGINES if find_spec(name) is not None)
