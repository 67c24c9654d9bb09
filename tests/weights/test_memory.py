"""Converting a model never holds more than two copies of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitlab

CONFIG = vitlab.ViTConfig(width=768, depth=12, heads=12, mlp_width=3072, patch_size=16, gelu="tanh")
PROGRAM = """
import json, re, sys
import vitlab
import vitlab.weights.load, vitlab.weights.save

def peak():
    # Not getrusage: its maximum is inherited from the process that started this one.
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))

source, target, format, options = sys.argv[1:5]
before = peak()
model = vitlab.load_weights(source, **json.loads(options))
vitlab.save_weights(model, target, format=format)
size = sum(p.numel() * 4 for p in model.parameters())
print((peak() - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("source", "theirs", "target", "format", "options"),
    [
        ("a.npz", "google", "b.safetensors", "timm", "{}"),
        ("a.pth", "timm", "b.npz", "google", '{"gelu": "tanh"}'),
    ],
)
def test_peak_memory(
    source: str, theirs: str, target: str, format: str, options: str, tmp_path: Path
) -> None:
    """Tensors pass one by one, so that one copy is held; two are allowed.

    What is above one is a tensor in conversion, a renewed mapping, and the allocator's share.
    """
    model = vitlab.VisionTransformer(CONFIG)
    assert sum(p.numel() for p in model.parameters()) == 86_567_656
    vitlab.save_weights(model, tmp_path / source, format=theirs)
    del model
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / source), str(tmp_path / target)]
    result = subprocess.run(
        [*command, format, options],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(Path(vitlab.__file__).parents[1])},
    )
    assert 1.0 < float(result.stdout) < 1.5
