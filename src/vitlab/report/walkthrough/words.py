"""Elements of the chapters: steps, formulas, worked sums, and names of tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitlab.explain.walkthrough import Linear, Walkthrough
from vitlab.report.html import Child, Html, element, join
from vitlab.report.walkthrough.images import number

TERMS = 3
"""Number of products of a sum that are written out."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the computation as the page shows it."""

    title: str
    shape: str
    content: Sequence[Child]


def paragraph(*parts: Child) -> Html:
    """Text, possibly with markup."""
    return element("p", *parts)


def formula(text: str) -> Html:
    """A formula: `q_i` has a lower index, `K^T` an upper one; braces hold longer ones."""
    return element("p", maths(text), class_="formula")


def maths(text: str) -> Html:
    """A formula within a sentence."""
    parts: list[Child] = []
    rest = text
    while rest:
        places = [place for place in (rest.find("_"), rest.find("^")) if place >= 0]
        if not places:
            parts.append(rest)
            break
        place = min(places)
        tag = "sub" if rest[place] == "_" else "sup"
        parts.append(rest[:place])
        rest = rest[place + 1 :]
        index, rest = rest[1:].split("}", 1) if rest[0] == "{" else (rest[0], rest[1:])
        parts.append(element(tag, index))
    return join(parts)


def tensors(*figures: Child) -> Html:
    """Images side by side, as many as fit."""
    return element("div", *figures, class_="tensors")


def worked(what: str, first: Sequence[float], second: Sequence[float], bias: float | None) -> Html:
    """A sum of products with its first terms written out: `what = a · b + … = total`."""
    terms = [
        f"({number(a)} × {number(b)})" for a, b in zip(first[:TERMS], second[:TERMS], strict=True)
    ]
    total = float(np.dot(first, second)) + (bias or 0.0)
    if len(first) > TERMS:
        terms.append(f"… {len(first) - TERMS} more …")
    if bias is not None:
        terms.append(f"{number(bias)} (bias)")
    return element(
        "p",
        maths(what),
        " = ",
        " + ".join(terms),
        " = ",
        element("b", number(total)),
        class_="worked",
    )


def worked_row(what: str, layer: Linear, x: Float[Tensor, " I"]) -> Html:
    """First output of a linear layer for a vector."""
    bias = None if layer.bias is None else float(layer.bias[0])
    return worked(what, layer.weight[0].tolist(), x.tolist(), bias)


def table(columns: Sequence[Child], rows: Iterable[tuple[str, Sequence[str]]]) -> Html:
    """Rows with a class each: `own`, `total` or nothing."""
    head = element("tr", *(element("th", column) for column in columns))
    body = [
        element("tr", *(element("td", cell) for cell in cells), class_=kind or None)
        for kind, cells in rows
    ]
    inner = element("table", element("thead", head), element("tbody", *body))
    return element("div", inner, class_="scroll")


def shape(*sizes: int) -> str:
    """`[64, 48]`."""
    return f"[{', '.join(map(str, sizes))}]"


def token_name(walk: Walkthrough, token: int, *, class_token: bool) -> str:
    """`class token`, `register 2` or `patch 3,4` (row and column)."""
    if token >= walk.prefix:
        row, column = divmod(token - walk.prefix, walk.grid[1])
        return f"patch {row},{column}"
    if class_token and not token:
        return "class token"
    return f"register {token + (not class_token)}"


def numbers(values: Float[Tensor, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Values as a NumPy array."""
    return values.numpy()
