"""LayerNorm, GELU and the MLP, number by number."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from reference.attention import linear

Array = NDArray[np.float64]


def branch(y: Array, p: Mapping[str, Array], name: str, eps: float) -> Array:
    """What a branch adds: as it is, by LayerScale's factors, or behind a LayerNorm."""
    if f"{name}.weight" in p:
        return layer_norm(y, p, name, eps)
    scaled: Array = y * p.get(f"{name}.gamma", 1.0)
    return scaled


def layer_norm(
    x: Array, p: Mapping[str, Array], name: str, eps: float, kind: str = "layer"
) -> Array:
    """Every vector on the last axis centred, divided by its deviation, scaled, maybe shifted.

    Of `kind` `rms`, it is not centred.
    """
    flat = x.reshape(-1, x.shape[-1])
    y = np.empty_like(flat)
    for i, vector in enumerate(flat):
        centred = vector if kind == "rms" else vector - vector.sum() / len(vector)
        variance = (centred @ centred) / len(vector)
        y[i] = centred / math.sqrt(variance + eps)
    scaled: Array = y.reshape(x.shape) * p[f"{name}.weight"]
    return scaled + p[f"{name}.bias"] if f"{name}.bias" in p else scaled


def gelu_erf(value: float) -> float:
    """x Φ(x), arXiv:1606.08415."""
    return value * 0.5 * (1.0 + math.erf(value / math.sqrt(2.0)))


def gelu_tanh(value: float) -> float:
    """The approximation of the same paper."""
    return 0.5 * value * (1.0 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))


def gelu_quick(value: float) -> float:
    """The approximation x σ(1.702 x) of the same paper."""
    return value / (1.0 + math.exp(-1.702 * value))


def silu(value: float) -> float:
    """x σ(x)."""
    return value / (1.0 + math.exp(-value))


def gelu(x: Array, kind: str) -> Array:
    function = {"erf": gelu_erf, "tanh": gelu_tanh, "quick": gelu_quick, "silu": silu}[kind]
    return np.array([function(value) for value in x.flat]).reshape(x.shape)


def mlp(
    x: Array, p: Mapping[str, Array], kind: str, eps: float = 1e-6, norm_kind: str = "layer"
) -> Array:
    """`kind` is that of GELU, or `relu2`, or `swiglu`; maybe with a norm before the last layer."""
    hidden = linear(x, p, "fc1")
    if kind == "swiglu":
        bent = gelu(linear(x, p, "gate"), "silu") * hidden
    else:
        bent = np.maximum(hidden, 0.0) ** 2 if kind == "relu2" else gelu(hidden, kind)
    if "norm.weight" in p:
        bent = layer_norm(bent, p, "norm", eps, norm_kind)
    return linear(bent, p, "fc2")
