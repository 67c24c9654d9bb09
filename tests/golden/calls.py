"""Calls of the public Python names: run as `calls.py NAME`, prints one JSON object."""

import inspect
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from golden.normal import digest

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full, registers, layer scale": {"registers": 2, "layer_scale": 0.1},
    "lsa, shifted patches": {"attention": "lsa", "stem": "shifted"},
    "sliding, mean": {"attention": "sliding", "window_size": 3, "pool": "mean"},
    "axial, rope": {"attention": "axial", "position": "rope"},
    "sparse, 2-D table": {"attention": "sparse", "window_size": 2, "position": "learned2d"},
    "relative, normed queries": {"position": "relative", "qk_norm": True},
    "biases per offset": {"position": "relative_bias", "relative_local": 1.5},
    "sincos, no class token": {"position": "sincos2d", "class_token": False, "pool": "mean_all"},
    "conditional, every layer": {"position": "conditional", "position_at": "every_layer"},
    "post-norm, attention pooling": {"norm": "post", "pool": "map"},
    "squared ReLU, mlp head": {"mlp_activation": "relu2", "head": "mlp", "norm_bias": False},
    "no projection, tanh": {"proj": False, "gelu": "tanh", "qkv_bias": False},
    "normed branches, pooled grid": {"branch_norm": 0.2, "depth": 3, "pool_after": 1},
}
OTHERS: dict[str, dict[str, Any]] = {
    "cnn_tutorial": {},
    "resnet18_cifar": {},
    "vit_cifar": {"image_size": 16},
    "vit_cifar_hybrid": {"image_size": 32, "depth": 1},
}
FORMATS: dict[str, dict[str, Any]] = {
    "google": {"gelu": "tanh"},
    "timm": {},
    "huggingface": {},
    "torchvision": {},
    "vit-pytorch": {"patch_norm": "both", "norm_eps": 1e-5, "qkv_bias": False},
    "vitlab": {"registers": 1, "position": "rope"},
}


def public() -> dict[str, Any]:
    """The public names, and the parameters of those that can be called."""
    import vitlab

    return {name: _signature(getattr(vitlab, name)) for name in vitlab.__all__ if name[0] != "_"}


def _signature(value: Any) -> Any:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "no signature"
    return {p.name: f"{p.kind.description} = {_default(p.default)}" for p in parameters}


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "(required)"
    plain = isinstance(value, str | int | float | tuple | list | dict | None)
    return repr(value) if plain else type(value).__name__


def models() -> dict[str, Any]:
    """Logits in both modes, the loss and the gradients of one step, of variants and networks."""
    found = {name: _model("vit_test", changes) for name, changes in VARIANTS.items()}
    return found | {name: _model(name, changes) for name, changes in OTHERS.items()}


def _model(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    import torch

    import vitlab

    torch.manual_seed(0)
    model = vitlab.create_model(name, classes=5, **changes)
    for parameter in model.parameters():  # a head that starts at zero would hide the rest
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    size = getattr(model.config, "image_size", 32)
    images = torch.randn(
        2, model.config.channels, *((size, size) if isinstance(size, int) else size)
    )
    model.eval()
    with torch.inference_mode():
        logits = model(images)
    model.train()
    torch.manual_seed(1)
    loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 3]))
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "names": digest("\n".join(model.state_dict()).encode()),
        "logits": logits.flatten().tolist(),
        "loss": loss.item(),
        "gradients": digest(b"".join(g.contiguous().numpy().tobytes() for g in gradients.values())),
    }


def attention() -> dict[str, Any]:
    """The attention function and module by themselves."""
    import torch

    import vitlab

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    module = vitlab.MultiHeadAttention(8, heads=2)
    with torch.inference_mode():
        return {
            "function": _flat(vitlab.dot_product_attention(q, k, v)),
            "module": _flat(module(torch.randn(1, 5, 8))),
            "names": {name: list(tensor.shape) for name, tensor in module.state_dict().items()},
        }


def _flat(value: Any) -> Any:
    """The numbers of a tensor, or of each tensor in a tuple."""
    return [_flat(one) for one in value] if isinstance(value, tuple) else value.flatten().tolist()


def classifier() -> dict[str, Any]:
    """The classifier in Python: predictions and features of one image and of several."""
    import vitlab

    model = vitlab.load("cifar10")
    several = [str(path) for path in sorted(Path("photos/left").iterdir())]
    return {
        "predictions": [asdict(found) for found in model.predict(["a.png", *several])],
        "labels": list(model.labels),
        "features": digest(model.features(several).tobytes()),
    }


def make_weights() -> dict[str, Any]:
    """Write `from-FORMAT.safetensors`: a small model that the format can store, for each format."""
    import torch

    import vitlab

    for name, changes in FORMATS.items():
        torch.manual_seed(0)
        model = vitlab.create_model("vit_test", classes=5, image_size=32, **changes)
        torch.nn.init.normal_(model.head.weight)
        vitlab.save_weights(model, f"from-{name}.safetensors", format="vitlab")
    return {"formats": list(FORMATS)}


def onnx() -> dict[str, Any]:
    """Outputs of the exported file on fixed pixels; rounded, since runtimes reorder sums."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession("exported.onnx", providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    shape = [side if isinstance(side, int) else 2 for side in entry.shape]
    pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return {
        "inputs": {
            entry.name: [str(side) for side in entry.shape] for entry in session.get_inputs()
        },
        "metadata": sorted(session.get_modelmeta().custom_metadata_map),
        "outputs": {
            output.name: np.round(value, 3).flatten().tolist()
            for output, value in zip(
                session.get_outputs(), session.run(None, {entry.name: pixels}), strict=True
            )
        },
    }


def options() -> dict[str, Any]:
    """Every command with its options and arguments, from the app that `python -m vitlab` starts."""
    import runpy

    import typer

    apps: list[typer.Typer] = []

    def caught(app: typer.Typer, *_: object, **__: object) -> int:
        apps.append(app)
        return 0

    sys.argv = ["vitlab"]
    with mock.patch.object(typer.Typer, "__call__", caught), suppress(SystemExit):
        runpy.run_module("vitlab", run_name="__main__", alter_sys=True)
    return _command(typer.main.get_command(apps[0]))


def _command(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"help": command.help, "hidden": command.hidden}
    found["params"] = {
        param.opts[0] if param.param_type_name == "option" else f"argument {number}": _param(param)
        for number, param in enumerate(command.params)
    }
    if hasattr(command, "list_commands"):
        context = command.make_context("vitlab", [], resilient_parsing=True)
        names = command.list_commands(context)
        found["commands"] = {name: _command(command.get_command(context, name)) for name in names}
    return found


def _param(param: Any) -> dict[str, Any]:
    kind = getattr(param, "type", param)  # older Typers keep the limits in the type
    described = getattr(param, "type_descriptor", None)
    return {
        "names": [*param.opts[1:], *param.secondary_opts],
        "type": str(getattr(described, "annotation", getattr(kind, "name", kind))),
        "limits": [str(getattr(kind, name, None)) for name in ("min", "max", "choices")],
        "default": repr(param.default),
        "required": param.required,
        "multiple": getattr(param, "multiple", None),
        "flag": getattr(param, "is_flag", None),
        "nargs": param.nargs,
        "envvar": param.envvar,
        "help": [str(param.metavar), str(getattr(param, "help", None))],
    }


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    call.__name__: call
    for call in (public, models, attention, classifier, make_weights, onnx, options)
}

if __name__ == "__main__":
    print(json.dumps(CALLS[sys.argv[1]]()))
