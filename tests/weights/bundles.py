"""Small bundles and foreign repositories, written the way users come by them."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save

from reference.random_weights import randomise
from vitlab import Preprocessing, VisionTransformer, create_model, save_weights
from vitlab.data.sources.cifar import CIFAR10_LABELS
from vitlab.weights import resolve
from vitlab.weights.bundle import save_bundle
from vitlab.weights.source import WeightSource

LABELS = ("ash", "birch", "cedar")
PREPARATION = Preprocessing(
    size=(32, 32), crop=0.8, interpolation="bilinear", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)
)
METRICS = {
    "test_images": 500,
    "test_accuracy": 0.9,
    "test_loss": 0.25,
    "validation_accuracy": 0.92,
}
PROVENANCE = {
    "recipe": "default",
    "data": "/home/me/trees",
    "seed": 7,
    "commit": "c0ffee",
    "command": "vitlab train default --data /home/me/trees --out runs/a",
    "weights": "ema",
    "licence": None,
    "vitlab": "0.1.0",
}


def small_model(name: str = "vit_test", seed: int = 0, **changes: Any) -> Any:
    """A model with weights of its own."""
    model = create_model(name, classes=len(LABELS), **changes)
    randomise(model, seed)
    return model.eval()


def make_bundle(folder: Path, model: Any = None, **changes: Any) -> Path:
    """A bundle of three trees."""
    content: dict[str, Any] = {
        "preprocessing": PREPARATION,
        "labels": LABELS,
        "metrics": METRICS,
        "provenance": PROVENANCE,
    }
    save_bundle(folder, small_model() if model is None else model, **content | changes)
    return folder


def bundle_inside(
    folder: Path, patch: pytest.MonkeyPatch, name: str = "vit_test.cifar10", **changes: Any
) -> Path:
    """A package whose one model is a tiny one; ten classes, whose images have 32 pixels."""
    patch.setattr(resolve, "FOLDER", folder)
    model = create_model("vit_test")
    randomise(model, 0)
    content: dict[str, Any] = {
        "labels": CIFAR10_LABELS,
        "preprocessing": Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.25,) * 3),
        "metrics": {"test_images": 1000, "test_accuracy": 0.125, "validation_accuracy": 0.1},
        "provenance": PROVENANCE | {"model": "vit_test", "data": "cifar10"},
    }
    return make_bundle(folder / name, model.eval(), **content | changes)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of a bundle's config.json; None removes one."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in content.items() if v is not None}))


def transformers_files(folder: Path) -> dict[str, bytes]:
    """What a repository of transformers holds: the model, a pickle, and code."""
    model: VisionTransformer = small_model()
    model.source = WeightSource(
        format="vitlab", path=folder, preprocessing=PREPARATION, labels=LABELS
    )
    save_weights(model, folder, format="huggingface")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["model.safetensors"] = without_metadata(folder / "model.safetensors")
    return files | {
        "pytorch_model.bin": b"a pickle",
        "modeling_custom.py": b"import os",
        "onnx/model.onnx": b"elsewhere",
        "README.md": b"---\nlicense: mit\n---\n# Trees\n",
    }


def timm_files(path: Path) -> dict[str, bytes]:
    """What a repository of timm holds."""
    save_weights(small_model(width=128, heads=2, mlp_width=64), path, format="timm")
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 3,
        "num_features": 128,
        "global_pool": "token",
        "pretrained_cfg": {
            "input_size": [3, 32, 32],
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "label_names": list(LABELS),
        },
    }
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": without_metadata(path),
        "pytorch_model.bin": b"a pickle",
    }


def without_metadata(path: Path) -> bytes:
    """The tensors of a file as others write them: without our config."""
    from safetensors.torch import load_file

    return save(load_file(path), metadata={"format": "pt"})
