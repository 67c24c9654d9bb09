"""Attention by its definition (arXiv:1706.03762, section 3.2): one query of one head at a time."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    """exp(s_i) / sum of exp(s_j), over the scores of one query."""
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def attend(
    q: Array, k: Array, v: Array, *, looks: Array | None, bias: Array | None, scale: float
) -> tuple[Array, Array]:
    """Outputs and weights of one head: q [M, K], k [N, K], v [N, V].

    `looks[m, n]` is true where query m may look at key n; `bias[m, n]` is added to the scores.
    """
    outputs = np.zeros((len(q), v.shape[1]))
    weights = np.zeros((len(q), len(k)))
    for m in range(len(q)):
        seen = np.array([n for n in range(len(k)) if looks is None or looks[m, n]])
        scores = scale * (k[seen] @ q[m])
        weights[m, seen] = softmax(scores if bias is None else scores + bias[m, seen])
        outputs[m] = weights[m] @ v
    return outputs, weights


def linear(x: Array, p: Mapping[str, Array], name: str) -> Array:
    """x Wᵀ + b, the bias where there is one."""
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def multi_head(
    queries: Array,
    tokens: Array,
    p: Mapping[str, Array],
    *,
    heads: int,
    looks: Array | None = None,
) -> tuple[Array, Array]:
    """MultiHead(Q, K, V) of one image: [M, D] and [N, D] to [M, D], and the weights [A, M, N]."""
    q, k, v = (linear(x, p, name) for x, name in ((queries, "q"), (tokens, "k"), (tokens, "v")))
    key, value = q.shape[1] // heads, v.shape[1] // heads
    joined, weights = [], []
    for head in range(heads):
        ks, vs = slice(head * key, (head + 1) * key), slice(head * value, (head + 1) * value)
        y, w = attend(
            q[:, ks], k[:, ks], v[:, vs], looks=looks, bias=None, scale=1 / math.sqrt(key)
        )
        joined.append(y)
        weights.append(w)
    return linear(np.concatenate(joined, axis=1), p, "out"), np.stack(weights)
