"""One query step by step, then all queries at once, then all heads: the page after the tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from vitlab.explain.walkthrough import Walkthrough
from vitlab.models.config import ViTConfig
from vitlab.report.html import Child, Html, element
from vitlab.report.language import say
from vitlab.report.numbers import number
from vitlab.report.walkthrough.before import Pixels
from vitlab.report.walkthrough.parts import (
    Step,
    formula,
    marked_table,
    maths,
    paragraph,
    photograph,
    shape,
    tensor,
    tensors,
    token_name,
    vector,
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
                f"vectors of K = {width} numbers: a query (what the token looks for), a key (what "
                f"it offers for comparison) and a value (what it passes on)."
            ),
            formula(
                f"q_i = W^q a_i{bias and ' + b^q'},   k_i = W^k a_i{bias and ' + b^k'},   "
                f"v_i = W^v a_i{bias and ' + b^v'}"
            ),
            worked_row(f"q_i[0] = W^q[0] · a_i{bias and ' + b^q[0]'}", head.to_q, read),
            tensors(
                vector(maths("a_i"), read.numpy(), note=f"what the head reads of {name}"),
                tensor(maths("W^q"), head.to_q.weight.numpy()),
                vector(maths("q_i"), head.q[query].numpy()),
                vector(maths("k_i"), head.k[query].numpy()),
                vector(maths("v_i"), head.v[query].numpy()),
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
                vector(maths("q_i"), normed[0][walk.query].numpy()),
                vector(maths("k_i"), normed[1][walk.query].numpy()),
            ),
        ],
    )


def compared(followed: Followed) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys as they are multiplied: after their LayerNorm, if there is one."""
    head = followed.walk.head
    return head.normed or (head.q, head.k)


def _scores(followed: Followed) -> Step:
    walk, head = followed.walk, followed.walk.head
    query, width = walk.query, followed.width
    queries, keys = compared(followed)
    best = int(head.scores[query].argmax())
    content: list[Child] = [
        paragraph(
            f"The query of {followed.name(query)} is multiplied with the key of every token, "
            f"number by number, and summed: the better they fit, the larger. Divided by √K = "
            f"√{width}, since a sum of {width} products would otherwise be too large for the "
            f"softmax that follows."
        ),
        formula("α_{ij} = q_i · k_j / √K" + ("" if head.offsets is None else " + β_{i−j}")),
        worked(
            f"q_i · k_j for j = {followed.name(best)}",
            queries[query].tolist(),
            keys[best].tolist(),
            None,
        ),
    ]
    if head.offsets is not None:
        content.append(
            paragraph(
                maths("β_{i−j}"),
                " is a number that this head has learned for each distance, in rows and columns, "
                "between two patches: relative positions.",
            )
        )
    parts = ["token j", maths("q_i · k_j"), f"× {number(head.scale)}"]
    plain = head.offsets is None
    parts += [] if plain else ["+ offset"]
    rows = []
    for token in followed.shown:
        score = float(head.scores[query, token])
        product = float(head.products[query, token])
        scaled = product * head.scale
        cells = [followed.name(token), number(product), number(scaled)]
        cells += [] if plain else [number(score)]
        rows.append(("own" if token == query else "", cells))
    scored = _map(followed, head.scores[query], "The brighter a patch, the larger its score")
    content.append(tensors(scored, marked_table(parts, rows)))
    return Step(
        title="Scores: the query meets every key",
        shape=f"{shape(width)} · {shape(width, followed.tokens)} → {shape(followed.tokens)}",
        content=content,
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
    rows.append(("total", [say(f"all {followed.tokens} tokens"), "", number(total), "1.0000"]))
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
                marked_table(
                    ["token j", "score", maths("exp(α_{ij} − max)"), maths(say("weight α̂_{ij}"))],
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
        f"Tokens before the patches, which the image cannot show, have {share:.1%} of the weight."
    )


def _map(
    followed: Followed, values: torch.Tensor, caption: str, *, least: float | None = None
) -> Html:
    """Values of the patches over the image, the smallest dark and the largest unchanged."""
    walk = followed.walk
    patches = values[walk.prefix :]
    light = patches - (float(patches.min()) if least is None else least)
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
    rows.append(("total", [say("weighted sum of all"), "1.0000", *values(output)]))
    heads: list[Child] = [element("span", maths(f"v_j[{place}]")) for place in range(shown)]
    return Step(
        title="The weighted sum of values",
        shape=f"{shape(followed.tokens)} · {shape(*head.v.shape)} → {shape(followed.width)}",
        content=[
            paragraph(
                "The output for this token is the sum of all values, each times its weight: mostly "
                "the values of the tokens with large weights."
            ),
            formula("b_i = Σ_j α̂_{ij} v_j"),
            marked_table(["token j", "weight", *heads], rows),
            tensors(vector(maths("b_i"), output.numpy(), note="the output of this head")),
        ],
    )


# All queries at once, then all heads.

THIRD = 236
"""Pixels of a matrix if three are side by side."""
HEADS = 16
"""Number of heads whose maps are shown."""


def steps_of_matrices(followed: Followed) -> Iterator[Step]:
    """Steps for all tokens, as products of matrices."""
    yield _projected(followed)
    yield _compared(followed)
    yield _summed(followed)


def steps_of_heads(followed: Followed) -> Iterator[Step]:
    """Steps of the concatenated heads, their projection, and the residual sum."""
    yield _joined(followed)
    yield _output(followed)
    yield _residual(followed)


def _projected(followed: Followed) -> Step:
    walk, head, width = followed.walk, followed.walk.head, followed.width
    queries, keys = compared(followed)
    size = shape(followed.tokens, width)
    return Step(
        title="All queries, keys and values",
        shape=f"{shape(*walk.read.shape)} · {shape(walk.read.shape[1], width)} → {size}, "
        "three times",
        content=[
            paragraph(
                f"Nothing in the steps above waited for another token, so all of them are done at "
                f"once. With a token a row, the three matrices give three tables of "
                f"{followed.tokens} rows. (Where a text writes vectors as columns, all of this is "
                f"transposed.)"
            ),
            paragraph("Queries and keys are normalised as above.") if head.normed else None,
            formula(",   ".join(_all(name, head.to_q.bias is not None) for name in "qkv")),
            tensors(
                tensor("Q", queries.numpy(), marked=walk.query, side=THIRD),
                tensor("K", keys.numpy(), marked=walk.query, side=THIRD),
                tensor("V", head.v.numpy(), marked=walk.query, side=THIRD),
            ),
        ],
    )


def _all(name: str, biased: bool) -> str:
    return f"{name.upper()} = A (W^{name})^T" + (f" + b^{name}" if biased else "")


def _compared(followed: Followed) -> Step:
    walk, head, tokens = followed.walk, followed.walk.head, followed.tokens
    added = "" if head.offsets is None else " + R"
    notes: list[Child] = []
    if head.offsets is not None:
        notes.append(paragraph("R holds what relative positions add."))
    return Step(
        title="All scores and weights",
        shape=f"{shape(tokens, followed.width)} · {shape(followed.width, tokens)} → "
        f"{shape(tokens, tokens)}",
        content=[
            paragraph(
                "Every query with every key is one product of matrices. The softmax goes along "
                "each row: row i says where token i looks. The row of the query above is marked."
            ),
            formula(f"S = Q K^T / √K{added},   Â = softmax of each row of S"),
            *notes,
            tensors(
                tensor("S", head.scores.numpy(), marked=walk.query),
                tensor("Â", head.weights.numpy(), note="rows sum to 1", marked=walk.query),
            ),
        ],
    )


def _summed(followed: Followed) -> Step:
    walk, head, tokens, width = (
        followed.walk,
        followed.walk.head,
        followed.tokens,
        followed.width,
    )
    return Step(
        title="All weighted sums",
        shape=f"{shape(tokens, tokens)} · {shape(tokens, width)} → {shape(tokens, width)}",
        content=[
            paragraph(
                "And the sums are a product too. The marked row is the vector that was found by "
                "hand above. Projections, scores, softmax, sums: that is all of a head."
            ),
            formula("B = Â V"),
            tensors(
                tensor("B", head.output.numpy(), marked=walk.query),
                vector(maths("b_i"), head.output[walk.query].numpy(), note="its marked row"),
            ),
        ],
    )


def _joined(followed: Followed) -> Step:
    walk, heads = followed.walk, len(followed.walk.all_weights)
    maps: list[Child] = []
    for number_, row in enumerate(walk.all_weights[:HEADS]):
        own = ", the one above" if number_ == walk.number else ""
        maps.append(
            photograph(
                followed.pixels,
                f"head {number_}{own}",
                grid=walk.grid,
                patch=walk.query - walk.prefix,
                weights=row[walk.prefix :].numpy(),
                small=True,
            )
        )
    many = (
        f"The block has {heads} heads, each with matrices of its own, and each may look elsewhere "
        f"from the same query. Their outputs are put side by side."
        if heads > 1
        else "This block has one head, so there is nothing to put beside its output."
    )
    some = f"The first {HEADS} heads are shown." if heads > HEADS else None
    sides = ", ".join(f"B_{{{number_}}}" for number_ in range(min(heads, 3)))
    return Step(
        title="Heads side by side",
        shape=f"{heads} × {shape(followed.tokens, followed.width)} → {shape(*walk.joined.shape)}",
        content=[
            paragraph(many),
            None if some is None else paragraph(some),
            formula(f"C = [{sides}{', …' if heads > 3 else ''}]"),
            tensors(*maps),
            tensors(
                tensor("C", walk.joined.numpy(), note="heads from left to right", marked=walk.query)
            ),
        ],
    )


def _output(followed: Followed) -> Step:
    walk = followed.walk
    bias = "" if walk.projection.bias is None else " + b^o"
    return Step(
        title="The projection",
        shape=f"{shape(*walk.joined.shape)} · {shape(*walk.projection.weight.T.shape)} → "
        f"{shape(*walk.projected.shape)}",
        content=[
            paragraph(
                "One more matrix mixes what the heads found into a vector of the token's width."
            ),
            formula(f"o_i = W^o c_i{bias},   for all tokens: O = C (W^o)^T{bias}"),
            worked_row(
                f"o_i[0] = W^o[0] · c_i{bias and ' + b^o[0]'}",
                walk.projection,
                walk.joined[walk.query],
            ),
            tensors(
                tensor(maths("W^o"), walk.projection.weight.numpy()),
                tensor("O", walk.projected.numpy(), marked=walk.query),
                vector(maths("o_i"), walk.projected[walk.query].numpy()),
            ),
        ],
    )


def _residual(followed: Followed) -> Step:
    walk, query = followed.walk, followed.walk.query
    before, after = float(walk.entering[query, 0]), float(walk.leaving[query, 0])
    added = after - before
    said = None
    if walk.gamma is not None:
        said = "LayerScale multiplies each channel by a learned factor γ first."
    if walk.branch_norm:
        said = "A LayerNorm of the result comes first, so that every block adds its share."
    size = shape(*walk.leaving.shape)
    return Step(
        title="Added to the token",
        shape=f"{size} + {size} → {size}",
        content=[
            paragraph(
                "The result is added to the tokens as they entered the block, so nothing of them "
                "is lost."
            ),
            None if said is None else paragraph(said),
            formula(f"z_i ← z_i + {walk.added_as('o_i')}"),
            paragraph(maths("z_i[0]"), f" = {number(before)} + {number(added)} = {number(after)}"),
            tensors(vector(maths("z_i"), walk.leaving[query].numpy(), note="behind the attention")),
        ],
    )
