"""All queries at once, then all heads: the last parts of the page."""

from collections.abc import Iterator

from vitlab.models.config import ViTConfig
from vitlab.report.html import Child
from vitlab.report.walkthrough.images import number, photograph, tensor, vector
from vitlab.report.walkthrough.query import Followed, asked_and_offered
from vitlab.report.walkthrough.words import (
    Step,
    formula,
    maths,
    numbers,
    paragraph,
    shape,
    tensors,
    worked_row,
)

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
    yield from _output(followed)
    yield _residual(followed)


def _projected(followed: Followed) -> Step:
    walk, head, width = followed.walk, followed.walk.head, followed.width
    asked, offered = asked_and_offered(followed)
    size = shape(followed.tokens, width)
    further = " (normalised and turned as above)" if head.normed or head.turned else ""
    return Step(
        title="All queries, keys and values",
        shape=f"{shape(*walk.read.shape)} · {shape(walk.read.shape[1], width)} → {size}, "
        "three times",
        content=[
            paragraph(
                f"Nothing in the steps above waited for another token, so all of them are done at "
                f"once. With a token a row, the three matrices give three tables of "
                f"{followed.tokens} rows{further}. (Where a text writes vectors as columns, all "
                f"of this is transposed.)"
            ),
            formula(",   ".join(_all(name, head.to_q.bias is not None) for name in "qkv")),
            tensors(
                tensor("Q", numbers(asked), row=walk.query, side=THIRD),
                tensor("K", numbers(offered), row=walk.query, side=THIRD),
                tensor("V", numbers(head.v), row=walk.query, side=THIRD),
            ),
        ],
    )


def _all(name: str, biased: bool) -> str:
    return f"{name.upper()} = A (W^{name})^T" + (f" + b^{name}" if biased else "")


def _compared(followed: Followed) -> Step:
    walk, head, tokens = followed.walk, followed.walk.head, followed.tokens
    scale = "τ " if followed.config.attention == "lsa" else ""
    under = "" if scale else " / √K"
    added = "" if head.offsets is None else " + R"
    notes: list[Child] = []
    if head.offsets is not None:
        notes.append(paragraph("R holds what relative positions add."))
    if head.looks is not None:
        notes.append(paragraph("Grey cells are −∞: there, a query may not look."))
    return Step(
        title="All scores and weights",
        shape=f"{shape(tokens, followed.width)} · {shape(followed.width, tokens)} → "
        f"{shape(tokens, tokens)}",
        content=[
            paragraph(
                "Every query with every key is one product of matrices. The softmax goes along "
                "each row: row i says where token i looks. The row of the query above is marked."
            ),
            formula(f"S = {scale}Q K^T{under}{added},   Â = softmax of each row of S"),
            *notes,
            tensors(
                tensor("S", numbers(head.scores), row=walk.query),
                tensor("Â", numbers(head.weights), note="rows sum to 1", row=walk.query),
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
                tensor("B", numbers(head.output), row=walk.query),
                vector(maths("b_i"), numbers(head.output[walk.query]), note="its marked row"),
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
    more = f" The first {HEADS} are shown." if heads > HEADS else ""
    many = (
        f"The block has {heads} heads, each with matrices of its own, and each may look elsewhere "
        f"from the same query.{more} Their answers are put side by side."
        if heads > 1
        else "This block has one head, so there is nothing to put beside its answer."
    )
    sides = ", ".join(f"B_{{{number_}}}" for number_ in range(min(heads, 3)))
    return Step(
        title="Heads side by side",
        shape=f"{heads} × {shape(followed.tokens, followed.width)} → {shape(*walk.joined.shape)}",
        content=[
            paragraph(many),
            formula(f"C = [{sides}{', …' if heads > 3 else ''}]"),
            tensors(*maps),
            tensors(
                tensor("C", numbers(walk.joined), note="heads from left to right", row=walk.query)
            ),
        ],
    )


def _output(followed: Followed) -> Iterator[Step]:
    walk = followed.walk
    if walk.projection is None:
        yield Step(
            title="No projection",
            shape=shape(*walk.projected.shape),
            content=[paragraph("This model has no projection behind the heads: O = C.")],
        )
        return
    bias = "" if walk.projection.bias is None else " + b^o"
    yield Step(
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
                tensor(maths("W^o"), numbers(walk.projection.weight)),
                tensor("O", numbers(walk.projected), row=walk.query),
                vector(maths("o_i"), numbers(walk.projected[walk.query])),
            ),
        ],
    )


def _residual(followed: Followed) -> Step:
    walk, query = followed.walk, followed.walk.query
    before, after = float(walk.entering[query, 0]), float(walk.leaving[query, 0])
    added = after - before
    added_as, said = "o_i", ""
    if walk.gamma is not None:
        added_as = "γ o_i"
        said += " LayerScale multiplies each channel by a learned factor γ first."
    if walk.branch_norm:
        added_as = "LN(o_i)"
        said += " A LayerNorm of the result comes first, so that every block adds its share."
    if not walk.norm_first:
        said += " A LayerNorm follows."
    size = shape(*walk.leaving.shape)
    return Step(
        title="Added to the token",
        shape=f"{size} + {size} → {size}",
        content=[
            paragraph(
                f"The result is added to the tokens as they entered the block, so nothing of them "
                f"is lost.{said} A small network of two layers (the MLP) then works on each token "
                f"alone, and the next block begins."
            ),
            formula(f"z_i ← z_i + {added_as}"),
            paragraph(maths("z_i[0]"), f" = {number(before)} + {number(added)} = {number(after)}"),
            tensors(
                vector(maths("z_i"), numbers(walk.leaving[query]), note="behind the attention")
            ),
            paragraph(_read_out(followed.config)),
        ],
    )


def _read_out(config: ViTConfig) -> str:
    ends = {
        "cls": "the class token alone is read",
        "mean": "the mean of all patch tokens is read",
        "mean_all": "the mean of all tokens is read",
        "map": "one more attention, with a learned query, sums up all tokens",
    }
    head = f" and a linear layer turns it into {config.classes} classes" if config.classes else ""
    return f"After {config.depth} such blocks {ends[config.pool]}{head}."
