"""Models to export, and what computes an ONNX file where vitlab is not installed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reference.random_weights import randomise
from vitlab import Preprocessing, create_model
from vitlab.nn.resnet import Bottleneck
from vitlab.weights.source import WeightSource

ALONE = """
import json, sys
import numpy as np
import onnxruntime
file, pixels, output = sys.argv[1:]
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
told = json.loads(session.get_modelmeta().custom_metadata_map["vitlab"])
images, (wanted,) = np.load(pixels), session.get_inputs()
if wanted.type == "tensor(float)":
    mean, std = (np.array(told["preprocessing"][key], np.float32) for key in ("mean", "std"))
    images = (images.astype(np.float32) / 255 - mean[:, None, None]) / std[:, None, None]
assert images.shape[2:] == tuple(told["preprocessing"]["size"])
(logits,) = session.run(["logits"], {"images": images.astype(images.dtype)})
assert logits.shape == (len(images), len(told["labels"]))
assert not {"torch", "vitlab", "onnx"} & set(sys.modules)
np.save(output, logits)
"""


def made(name: str = "vit_test", **changes: Any) -> Any:
    """A model with weights everywhere, and preprocessing of its own for every channel."""
    model: Any = create_model(name, **changes)
    randomise(model)
    quieten(model)
    channels, size = model.config.channels, model.config.image_size
    model.source = WeightSource(
        format="vitlab",
        path=Path(name),
        preprocessing=Preprocessing(
            size=size if isinstance(size, tuple) else (size, size),
            mean=tuple(0.3 + 0.07 * number for number in range(channels)),
            std=tuple(0.2 + 0.03 * number for number in range(channels)),
        ),
    )
    return model.eval()


def quieten(model: torch.nn.Module) -> None:
    """Let the residual units of a BiT ResNet, which begin with nothing to add, add a little.

    With factors around one, float32 itself is 1e-4 from float64 behind fifty layers.
    """
    for module in model.modules():
        if isinstance(module, Bottleneck):
            module.norm3.weight.data.mul_(0.3)


def random_pixels(model: Any, count: int) -> NDArray[np.uint8]:
    preprocessing = model.source.preprocessing
    shape = (count, preprocessing.channels, *preprocessing.size)
    return np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)


def expected(model: Any, pixels: NDArray[np.uint8]) -> Any:
    """The logits in float64, of images normalised by their definition."""
    mean, std = (
        torch.tensor(values, dtype=torch.float64)[:, None, None]
        for values in (model.source.preprocessing.mean, model.source.preprocessing.std)
    )
    images = (torch.from_numpy(pixels).double() / 255 - mean) / std
    double = model.double()
    try:
        with torch.inference_mode():
            return double(images).numpy()
    finally:
        model.float()


def run_alone(file: Path, pixels: NDArray[np.uint8], folder: Path) -> NDArray[np.float32]:
    """What ONNX Runtime and NumPy alone make of a file and its metadata."""
    np.save(folder / "pixels.npy", pixels)
    names = [str(folder / name) for name in ("pixels.npy", "logits.npy")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(file), *names],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: NDArray[np.float32] = np.load(folder / "logits.npy")
    return found
