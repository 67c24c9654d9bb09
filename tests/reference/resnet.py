"""Convolutional networks from their definitions: NumPy, float64, one output pixel at a time."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]
Pads = tuple[tuple[int, int], tuple[int, int]]
Parameters = Mapping[str, Array]


def parameters(module: nn.Module) -> Parameters:
    """Parameters and buffers of a module by name."""
    return {name: value.numpy().astype(float) for name, value in module.state_dict().items()}


def under(p: Parameters, prefix: str) -> Parameters:
    """The parameters below one submodule."""
    return {k.removeprefix(prefix): v for k, v in p.items() if k.startswith(prefix)}


def same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Widen an axis, the end first, until ceil(size / stride) windows fit."""
    low = high = 0
    while (low + size + high - kernel) // stride + 1 < math.ceil(size / stride):
        low, high = (low, high + 1) if low == high else (low + 1, high)
    return low, high


def pad(x: Array, pads: Pads, value: float) -> Array:
    return np.pad(x, ((0, 0), (0, 0), *pads), constant_values=value)


def windows(x: Array, kernel: int, stride: int) -> Iterator[tuple[int, int, Array]]:
    """Every window with its place in the output."""
    for row in range((x.shape[2] - kernel) // stride + 1):
        for column in range((x.shape[3] - kernel) // stride + 1):
            top, left = row * stride, column * stride
            yield row, column, x[:, :, top : top + kernel, left : left + kernel]


def conv(
    x: Array, w: Array, *, stride: int = 1, pads: Pads | None = None, bias: Array | float = 0.0
) -> Array:
    """Cross-correlation; `pads` None is SAME."""
    k = w.shape[-1]
    pads = pads if pads is not None else (same(x.shape[2], k, stride), same(x.shape[3], k, stride))
    x = pad(x, pads, 0.0)
    rows, columns = ((side - k) // stride + 1 for side in x.shape[2:])
    y = np.empty((len(x), len(w), rows, columns))
    for row, column, window in windows(x, k, stride):
        y[:, :, row, column] = np.tensordot(window, w, ((1, 2, 3), (1, 2, 3))) + bias
    return y


def max_pool(x: Array, kernel: int, stride: int) -> Array:
    rows, columns = ((side - kernel) // stride + 1 for side in x.shape[2:])
    y = np.empty((*x.shape[:2], rows, columns))
    for row, column, window in windows(x, kernel, stride):
        y[:, :, row, column] = window.max(axis=(2, 3))
    return y


def same_max_pool(x: Array) -> Array:
    return max_pool(pad(x, (same(x.shape[2], 3, 2), same(x.shape[3], 3, 2)), -np.inf), 3, 2)


def standardise(w: Array, eps: float, eps_at: str) -> Array:
    out = np.empty_like(w)
    for index, kernel in enumerate(w):
        centred = kernel - sum(kernel.flat) / kernel.size
        variance = sum(value**2 for value in centred.flat) / kernel.size
        scale = math.sqrt(variance) + eps if eps_at == "std" else math.sqrt(variance + eps)
        out[index] = centred / scale
    return out


def affine(x: Array, p: Parameters, name: str) -> Array:
    return x * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]


def group_norm(x: Array, p: Parameters, name: str, eps: float) -> Array:
    y = np.empty_like(x)
    size = x.shape[1] // 32
    for sample in range(len(x)):
        for start in range(0, x.shape[1], size):
            group = x[sample, start : start + size]
            y[sample, start : start + size] = (group - group.mean()) / np.sqrt(group.var() + eps)
    return affine(y, p, name)


def batch_norm(x: Array, p: Parameters, name: str) -> Array:
    """As in evaluation: with the running statistics."""
    mean, var = p[f"{name}.running_mean"], p[f"{name}.running_var"]
    return affine((x - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5), p, name)


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def bottleneck(
    p: Parameters,
    x: Array,
    *,
    stride: int,
    norm_eps: float,
    std_eps: float,
    std_eps_at: str = "std",
) -> Array:
    """The hybrids' unit."""

    def step(y: Array, name: str, stride: int = 1) -> Array:
        y = conv(y, standardise(p[f"conv{name}.weight"], std_eps, std_eps_at), stride=stride)
        return group_norm(y, p, f"norm{name}", norm_eps)

    residual = step(x, "_proj", stride) if "conv_proj.weight" in p else x
    y = step(relu(step(relu(step(x, "1")), "2", stride)), "3")
    return relu(residual + y)


def trunk(
    p: Parameters,
    x: Array,
    *,
    layers: tuple[int, ...],
    norm_eps: float,
    std_eps: float,
    std_eps_at: str = "std",
) -> Array:
    x = conv(x, standardise(p["root.conv.weight"], std_eps, std_eps_at), stride=2)
    x = same_max_pool(relu(group_norm(x, p, "root.norm", norm_eps)))
    for s, units in enumerate(layers):
        for u in range(units):
            unit = under(p, f"stages.{s}.{u}.")
            stride = 2 if s > 0 and u == 0 else 1
            x = bottleneck(
                unit,
                x,
                stride=stride,
                norm_eps=norm_eps,
                std_eps=std_eps,
                std_eps_at=std_eps_at,
            )
    return x


def basic_block(p: Parameters, x: Array, stride: int) -> Array:
    border = ((1, 1), (1, 1))
    residual = x
    if "conv_proj.weight" in p:
        residual = conv(x, p["conv_proj.weight"], stride=stride, pads=((0, 0), (0, 0)))
        residual = batch_norm(residual, p, "norm_proj")
    y = conv(x, p["conv1.weight"], stride=stride, pads=border)
    y = conv(relu(batch_norm(y, p, "norm1")), p["conv2.weight"], pads=border)
    return relu(residual + batch_norm(y, p, "norm2"))


def cifar_resnet(p: Parameters, x: Array, layers: tuple[int, ...]) -> Array:
    x = relu(batch_norm(conv(x, p["root.conv.weight"], pads=((1, 1), (1, 1))), p, "root.norm"))
    for s, units in enumerate(layers):
        for u in range(units):
            x = basic_block(under(p, f"stages.{s}.{u}."), x, 2 if s > 0 and u == 0 else 1)
    return x.mean(axis=(2, 3)) @ p["head.weight"].T + p["head.bias"]


def tutorial(p: Parameters, x: Array) -> Array:
    valid = ((0, 0), (0, 0))
    for name in ("conv1", "conv2"):
        x = conv(x, p[f"{name}.weight"], bias=p[f"{name}.bias"], pads=valid)
        x = max_pool(relu(x), 2, 2)
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = relu(x @ p[f"{name}.weight"].T + p[f"{name}.bias"])
    return x @ p["head.weight"].T + p["head.bias"]
