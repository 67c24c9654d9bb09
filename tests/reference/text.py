"""A text tower from its definition, text by text, from tensors by name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.attention import attend, linear
from reference.layers import branch, layer_norm, mlp
from reference.resnet import under

Array = NDArray[np.float64]


def embedding(text: Sequence[int], p: Mapping[str, Array], config: Mapping[str, Any]) -> Array:
    """Embedding of one text, from the numbers of its tokens."""
    eps = config["norm_eps"]
    x = p["token_embedding.weight"][list(text)] + p["position_table"][: len(text)]
    for block in range(config["depth"]):
        part = under(p, f"blocks.{block}.")
        y = _attention(layer_norm(x, part, "norm1", eps), under(part, "attention."), config)
        x = x + branch(y, part, "scale1", eps)
        y = mlp(layer_norm(x, part, "norm2", eps), under(part, "mlp."), config["gelu"])
        x = x + branch(y, part, "scale2", eps)
    found = layer_norm(x, p, "norm", eps)[_place(text, config)]
    return found if config["embedding"] is None else linear(found, p, "projection")


def _attention(x: Array, p: Mapping[str, Array], config: Mapping[str, Any]) -> Array:
    queries, keys, values = np.split(linear(x, p, "qkv"), 3, axis=1)
    width = queries.shape[1] // config["heads"]
    looks = np.tril(np.ones((len(x), len(x)), bool)) if config["causal"] else None
    joined = []
    for head in range(config["heads"]):
        one = slice(head * width, (head + 1) * width)
        q, k, v = queries[:, one], keys[:, one], values[:, one]
        joined.append(attend(q, k, v, looks=looks, bias=None, scale=1 / math.sqrt(width))[0])
    return linear(np.concatenate(joined, axis=1), p, "proj")


def _place(text: Sequence[int], config: Mapping[str, Any]) -> int:
    """Position of the token that is read."""
    if config["pool"] == "argmax":
        return list(text).index(max(text))
    if config["pool"] == "eos":
        return list(text).index(config["eos"])
    return 0 if config["pool"] == "first" else len(text) - 1
