"""Step-by-step computation for one query: the second part of the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from vitlab.explain.walkthrough import Walkthrough
from vitlab.models.config import ViTConfig
from vitlab.report.html import Child, Html, element
from vitlab.report.walkthrough.before import Pixels
from vitlab.report.walkthrough.images import number, ordinal, photograph, tensor, vector
from vitlab.report.walkthrough.words import (
    Step,
    formula,
    maths,
    numbers,
    paragraph,
    shape,
    table,
    tensors,
    token_name,
    worked,
    worked_row,
)

SHOWN = 6
"""Number of keys with the largest weights in the tables, besides the query and the prefix."""
FIRST = 4
"""Number of entries of a value that a table shows."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A walkthrough with the data for its texts."""

    walk: Walkthrough
    config: ViTConfig
    pixels: Pixels

    def name(self, token: int) -> str:
        return token_name(self.walk, token, class_token=self.config.class_token)

    @property
    def tokens(self) -> int:
        return len(self.walk.entering)

    @property
    def width(self) -> int:
        """Width of one head."""
        return self.walk.head.q.shape[1]

    @property
    def shown(self) -> list[int]:
        """Keys shown in the tables, in the order of the sequence."""
        weights = self.walk.head.weights[self.walk.query]
        most = weights.argsort(descending=True, stable=True)[:SHOWN].tolist()
        first = [0] if self.walk.prefix else []
        return sorted({*most, *first, self.walk.query})


def steps_of_a_query(followed: Followed) -> Iterator[Step]:
    """Query, key and value; scores; softmax; weighted sum."""
    yield _projections(followed)
    yield from _norms(followed)
    yield from _turns(followed)
    yield _scores(followed)
    yield _softmax(followed)
    yield _weighted_sum(followed)


def _projections(followed: Followed) -> Step:
    walk, head, width = followed.walk, followed.walk.head, followed.width
    query, name = walk.query, followed.name(walk.query)
    read = walk.read[query]
    bias = "" if head.to_q.bias is None else " + b"
    return Step(
        title="Query, key and value of one token",
        shape=f"{shape(width, len(read))} · {shape(len(read))} → {shape(width)}, three times",
        content=[
            paragraph(
                f"Head {walk.number} has three matrices of its own. From one token they make three "
                f"vectors of K = {width} numbers: a query (what it asks for), a key (what it "
                f"offers to be found by) and a value (what it tells whoever finds it)."
            ),
            formula(
                f"q_i = W^q a_i{bias and ' + b^q'},   k_i = W^k a_i{bias and ' + b^k'},   "
                f"v_i = W^v a_i{bias and ' + b^v'}"
            ),
            worked_row(f"q_i[0] = W^q[0] · a_i{bias and ' + b^q[0]'}", head.to_q, read),
            tensors(
                vector(maths("a_i"), numbers(read), note=f"what the head reads of {name}"),
                tensor(maths("W^q"), numbers(head.to_q.weight)),
                vector(maths("q_i"), numbers(head.q[query])),
                vector(maths("k_i"), numbers(head.k[query])),
                vector(maths("v_i"), numbers(head.v[query])),
            ),
        ],
    )


def _norms(followed: Followed) -> Iterator[Step]:
    walk, normed = followed.walk, followed.walk.head.normed
    if normed is None:
        return
    yield Step(
        title="Queries and keys are normalised",
        shape=f"{shape(followed.width)} → {shape(followed.width)}, twice",
        content=[
            paragraph(
                "This model (qk_norm) sends each query and each key through a LayerNorm, so that "
                "scores cannot grow without limit while it learns."
            ),
            formula("q_i ← LayerNorm(q_i),   k_i ← LayerNorm(k_i)"),
            tensors(
                vector(maths("q_i"), numbers(normed[0][walk.query])),
                vector(maths("k_i"), numbers(normed[1][walk.query])),
            ),
        ],
    )


def _turns(followed: Followed) -> Iterator[Step]:
    walk, turned = followed.walk, followed.walk.head.turned
    if turned is None:
        return
    yield Step(
        title="Queries and keys are turned by their place",
        shape=f"{shape(followed.width)} → {shape(followed.width)}, twice",
        content=[
            paragraph(
                "Rotary positions: the numbers of a query are taken in pairs, and each pair is "
                "turned like the hand of a clock, by an angle that grows with the column (first "
                "half) or the row (second half) of the patch; keys likewise. The product of a "
                "query and a key then depends on how far apart they are. Prefix tokens have no "
                "place and are not turned."
            ),
            formula("(q_{2m}, q_{2m+1}) ← rotation by θ_m · column, or θ_m · row"),
            tensors(
                vector(maths("q_i"), numbers(turned[0][walk.query])),
                vector(maths("k_i"), numbers(turned[1][walk.query])),
            ),
        ],
    )


def asked_and_offered(followed: Followed) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys after all transformations of the model."""
    head = followed.walk.head
    return head.turned or head.normed or (head.q, head.k)


def _scores(followed: Followed) -> Step:
    walk, head = followed.walk, followed.walk.head
    query, width = walk.query, followed.width
    asked, offered = asked_and_offered(followed)
    best = int(head.scores[query].argmax())
    content: list[Child] = [
        paragraph(
            f"The query of {followed.name(query)} is multiplied with the key of every token, "
            f"number by number, and summed: the better they fit, the larger. {_scaled(followed)}"
        ),
        formula(_score_formula(followed)),
        worked(
            f"q_i · k_j for j = {followed.name(best)}",
            asked[query].tolist(),
            offered[best].tolist(),
            None,
        ),
    ]
    if head.offsets is not None:
        content.append(_relative(followed))
    if head.looks is not None:
        content.append(paragraph(_hidden(followed)))
    parts = ["token j", maths("q_i · k_j"), f"× {number(head.scale)}"]
    plain = head.offsets is None and head.looks is None
    parts += [] if plain else ["score" if head.offsets is None else "+ offset"]
    rows = []
    for token in followed.shown:
        score = float(head.scores[query, token])
        product = float(head.products[query, token])
        scaled = product * head.scale
        cells = [followed.name(token), number(product), number(scaled)]
        cells += [] if plain else [number(score)]
        rows.append(("own" if token == query else "", cells))
    scored = _map(followed, head.scores[query], "The brighter a patch, the larger its score")
    content.append(tensors(scored, table(parts, rows)))
    return Step(
        title="Scores: the query meets every key",
        shape=f"{shape(width)} · {shape(width, followed.tokens)} → {shape(followed.tokens)}",
        content=content,
    )


def _scaled(followed: Followed) -> str:
    head, width = followed.walk.head, followed.width
    if followed.config.attention == "lsa":
        return (
            f"The product is multiplied by a temperature that this head has learned, "
            f"{number(head.scale)} (without learning it would be 1 / √{width} = "
            f"{number(width**-0.5)})."
        )
    return (
        f"Divided by √K = √{width}, since a sum of {width} products would otherwise be too large "
        f"for the softmax that follows."
    )


def _score_formula(followed: Followed) -> str:
    scale = "τ " if followed.config.attention == "lsa" else ""
    under = "" if scale else " / √K"
    if followed.walk.head.offsets is None:
        return f"α_{{ij}} = {scale}q_i · k_j{under}"
    if followed.config.position == "relative_bias":
        return f"α_{{ij}} = {scale}q_i · k_j{under} + β_{{i−j}}"
    return f"α_{{ij}} = {scale}(q_i · k_j + q_i · r_{{i−j}}){under}"


def _relative(followed: Followed) -> Html:
    if followed.config.position == "relative_bias":
        return paragraph(
            maths("β_{i−j}"),
            " is a number that this head has learned for each distance, in rows and columns, "
            "between two patches: relative positions.",
        )
    return paragraph(
        maths("r_{i−j}"),
        " is learned for each distance between two patches along the order of reading: "
        "relative positions. It is multiplied with the same query.",
    )


def _hidden(followed: Followed) -> str:
    looks = followed.walk.head.looks
    assert looks is not None
    kinds = {
        "lsa": "A token may not look at itself",
        "sliding": "A patch may look only at those around it",
        "axial": "A patch may look only along its own "
        + ("column" if followed.walk.layer % 2 else "row"),
        "sparse": "A patch may look only at those near it in the order of reading, and at every "
        f"{ordinal(followed.config.window_size)}",
    }
    kind = kinds.get(followed.config.attention, "A token may not look at all others")
    seen = int(looks[followed.walk.query].sum())
    return (
        f"{kind}: all other scores are set to −∞, and become zero in the softmax. This query may "
        f"look at {seen} of {followed.tokens} tokens."
    )


def _softmax(followed: Followed) -> Step:
    walk, head = followed.walk, followed.walk.head
    scores, weights = head.scores[walk.query], head.weights[walk.query]
    most = float(scores.max())
    powers = (scores - most).exp()
    total = float(powers.sum())
    rows: list[tuple[str, Sequence[str]]] = [
        (
            "own" if token == walk.query else "",
            [
                followed.name(token),
                number(float(scores[token])),
                number(float(powers[token])),
                number(float(weights[token])),
            ],
        )
        for token in followed.shown
    ]
    rows.append(("total", [f"all {followed.tokens} tokens", "", number(total), "1.0000"]))
    return Step(
        title="Softmax: scores become weights",
        shape=f"{shape(followed.tokens)} → {shape(followed.tokens)}, sum 1",
        content=[
            paragraph(
                "Every score is raised to the power of e and divided by the sum of all of them: "
                "the weights are positive and sum to one. (The largest score is taken off all of "
                "them first, which changes nothing in the result and keeps the powers small.)"
            ),
            formula("α̂_{ij} = exp(α_{ij} − max) / Σ_j exp(α_{ij} − max)"),
            tensors(
                _map(followed, weights, "The brighter a patch, the larger its weight", least=0.0),
                table(
                    ["token j", "score", maths("exp(α_{ij} − max)"), maths("weight α̂_{ij}")],
                    rows,
                ),
            ),
            paragraph(f"The largest score is {number(most)}."),
            paragraph(_prefix_share(followed)) if walk.prefix else None,
        ],
    )


def _prefix_share(followed: Followed) -> str:
    walk = followed.walk
    share = float(walk.head.weights[walk.query, : walk.prefix].sum())
    return (
        f"The {'token' if walk.prefix == 1 else 'tokens'} before the patches, which the picture "
        f"cannot show, {'has' if walk.prefix == 1 else 'have'} {share:.1%} of the weight."
    )


def _map(
    followed: Followed, values: torch.Tensor, caption: str, *, least: float | None = None
) -> Html:
    """Values of the patches over the image, the smallest dark and the largest unchanged."""
    walk = followed.walk
    patches = values[walk.prefix :]
    finite = patches.isfinite()
    if least is None:
        least = float(patches[finite].min()) if finite.any() else 0.0
    light = torch.where(finite, patches - least, 0.0)
    return photograph(
        followed.pixels,
        caption,
        grid=walk.grid,
        patch=walk.query - walk.prefix,
        weights=light.numpy(),
    )


def _weighted_sum(followed: Followed) -> Step:
    walk, head = followed.walk, followed.walk.head
    weights, output = head.weights[walk.query], head.output[walk.query]
    shown = min(FIRST, followed.width)

    def values(row: torch.Tensor) -> list[str]:
        return [number(value) for value in row[:shown].tolist()]

    rows: list[tuple[str, Sequence[str]]] = [
        (
            "own" if token == walk.query else "",
            [followed.name(token), number(float(weights[token])), *values(head.v[token])],
        )
        for token in followed.shown
    ]
    rows.append(("total", ["weighted sum of all", "1.0000", *values(output)]))
    heads: list[Child] = [element("span", maths(f"v_j[{place}]")) for place in range(shown)]
    return Step(
        title="The weighted sum of values",
        shape=f"{shape(followed.tokens)} · {shape(*head.v.shape)} → {shape(followed.width)}",
        content=[
            paragraph(
                "The answer to the query is the sum of all values, each times its weight: mostly "
                "what the tokens say that it looks at."
            ),
            formula("b_i = Σ_j α̂_{ij} v_j"),
            table(["token j", "weight", *heads], rows),
            tensors(vector(maths("b_i"), numbers(output), note="what this head answers")),
        ],
    )
