"""From the image to the input of the heads: the first part of the page."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8

from vitlab.explain.walkthrough import Walkthrough
from vitlab.models.config import ViTConfig, pair
from vitlab.report.html import Child
from vitlab.report.language import say
from vitlab.report.numbers import number
from vitlab.report.walkthrough.parts import (
    Step,
    formula,
    maths,
    paragraph,
    photograph,
    shape,
    tensor,
    tensors,
    token_name,
    vector,
    worked_row,
)

Pixels = UInt8[np.ndarray, "H W 3"]


def steps_before(walk: Walkthrough, config: ViTConfig, pixels: Pixels) -> Iterator[Step]:
    """Steps for image, patches, tokens, prefix tokens, positions, and the block's input norm."""
    yield from _patches(walk, config, pixels)
    yield from _tokens(walk, config)
    yield from _prefix(walk, config)
    yield _positions(walk, config)
    yield _block_input(walk, config)


def _patch(walk: Walkthrough) -> int | None:
    """Patch that is followed, if the stem has the same grid as the block."""
    return walk.query - walk.prefix if walk.grid == walk.embedded.grid else None


def _patches(walk: Walkthrough, config: ViTConfig, pixels: Pixels) -> Iterator[Step]:
    embedded = walk.embedded
    rows, columns = embedded.grid
    count, sizes = rows * columns, tuple(embedded.image.shape)
    if embedded.flat is None:
        kind = "a ResNet turns" if config.stem == "resnet" else "a few convolutions turn"
        content: list[Child] = [
            paragraph(
                f"This model does not cut the image itself: {kind} it into a map of "
                f"{rows} × {columns} places, and each place becomes one token.",
                " ",
                "The lines show the part of the image that each place stands for; its numbers "
                "also depend on pixels a little beyond.",
            ),
            tensors(photograph(pixels, "The image", grid=embedded.grid, patch=_patch(walk))),
        ]
        yield Step(
            title="The image becomes a map",
            shape=f"{shape(*sizes)} → {shape(rows, columns, config.width)}",
            content=content,
        )
        return
    height, width = pair(config.patch_size)
    content = [
        paragraph(
            f"A transformer reads a sequence of vectors, not an image. So the image is cut into "
            f"{rows} × {columns} = {count} patches of {height} × {width} pixels, and the "
            f"{height} × {width} × {config.channels} = {height * width * config.channels} numbers "
            f"of a patch are written one behind the other, channel by channel."
        )
    ]
    patch = _patch(walk)
    pictures: list[Child] = [
        photograph(pixels, f"The image, in {count} patches", grid=embedded.grid, patch=patch),
        tensor("X", embedded.flat.numpy(), note="one patch a row", marked=patch, side=300),
    ]
    if patch is not None:
        name = token_name(walk, walk.query, class_token=config.class_token)
        note = f"the pixels of {name}, normalised"
        pictures.append(vector(maths("x_i"), embedded.flat[patch].numpy(), note=note))
    content.append(tensors(*pictures))
    yield Step(
        title="The image becomes patches",
        shape=f"{shape(*sizes)} → {shape(*embedded.flat.shape)}",
        content=content,
    )


def _tokens(walk: Walkthrough, config: ViTConfig) -> Iterator[Step]:
    embedded = walk.embedded
    if embedded.flat is None or embedded.projection is None:
        return
    patch, projection = _patch(walk), embedded.projection
    content: list[Child] = [
        paragraph(
            "One matrix E, learned and the same for all patches, turns each patch into a vector of "
            f"D = {config.width} numbers: a token. (As a convolution whose stride is its size, "
            "this is one operation.)"
        ),
        formula("z_i = E x_i + b"),
    ]
    if patch is not None:
        content.append(worked_row("z_i[0] = E[0] · x_i + b[0]", projection, embedded.flat[patch]))
    content.append(
        tensors(
            tensor("E", projection.weight.numpy(), note="learned"),
            tensor("Z", embedded.patches.numpy(), note="one token a row", marked=patch),
        )
    )
    flat = embedded.flat.shape
    yield Step(
        title="Patches become tokens",
        shape=f"{shape(*flat)} · {shape(flat[1], config.width)} → {shape(flat[0], config.width)}",
        content=content,
    )


def _prefix(walk: Walkthrough, config: ViTConfig) -> Iterator[Step]:
    embedded = walk.embedded
    if not len(embedded.prefix):
        return
    said: list[Child] = []
    if config.class_token:
        said += ["The class token holds no pixels: it collects what the head will read.", " "]
    if config.registers:
        said += [f"Registers ({config.registers} here) hold intermediate results.", " "]
    count, total = len(embedded.prefix), len(embedded.tokens)
    note = "learned" if embedded.prefix.any() else "learned; still zero, as it begins"
    yield Step(
        title="Learned tokens are put before them",
        shape=f"{shape(count, config.width)} and {shape(total - count, config.width)} → "
        f"{shape(total, config.width)}",
        content=[
            paragraph(
                *said,
                f"The vectors are learned and the same for every image. From here on they are "
                f"tokens like all others, and N = {total}.",
            ),
            tensors(tensor(say("prefix"), embedded.prefix.numpy(), note=note)),
        ],
    )


POSITIONS = {
    "learned1d": "Each token has a learned vector.",
    "learned2d": "One half of the vector is learned for the column, the other for the row.",
    "sincos2d": "The vectors are sines and cosines of column and row; they are not learned.",
    "relative_bias": "In this model the distance of two patches counts in their score (below).",
    "none": "This model has no such information: it sees a bag of patches.",
}


def _positions(walk: Walkthrough, config: ViTConfig) -> Step:
    shuffled = "Attention alone would give the same result if the patches were shuffled."
    table, result, kind = walk.embedded.positions, walk.embedded.tokens, POSITIONS[config.position]
    size = shape(*result.shape)
    if table is None:
        return Step(title="Positions", shape=size, content=[paragraph(shuffled, " ", kind)])
    placed = "So a vector for its place is added to each token, before the first block."
    content: list[Child] = [
        paragraph(*(shuffled, " ", placed, " ", kind)),
        formula("z_i ← z_i + p_i"),
    ]
    query = walk.query if len(table) == len(walk.entering) else None
    if query is not None:
        before, added = float(result[query, 0] - table[query, 0]), float(table[query, 0])
        total = number(float(result[query, 0]))
        content.append(
            paragraph(maths("z_i[0]"), f" = {number(before)} + {number(added)} = {total}")
        )
    content.append(
        tensors(
            tensor("P", table.numpy(), marked=query), tensor("Z + P", result.numpy(), marked=query)
        )
    )
    return Step(title="Positions are added", shape=f"{size} + {size} → {size}", content=content)


def _block_input(walk: Walkthrough, config: ViTConfig) -> Step:
    content: list[Child] = []
    if walk.layer:
        rows, columns = walk.grid
        pooled = walk.grid != walk.embedded.grid
        content.append(
            paragraph(
                f"Blocks before this one: {walk.layer}. They have changed the tokens; what enters "
                "here is no longer the patch alone.",
                " ",
                f"There are {rows} × {columns} patches, each the mean of 2 × 2 of those above."
                if pooled
                else f"There are {rows} × {columns} patches.",
            )
        )
    moved = " and moved" if config.norm_bias else ""
    content += [
        paragraph(
            "A LayerNorm brings every token to one size: its numbers less their mean, divided "
            f"by their standard deviation, then scaled{moved} by learned numbers."
        ),
        formula("a_i = LayerNorm(z_i)"),
    ]
    content.append(
        tensors(
            vector(maths("z_i"), walk.entering[walk.query].numpy()),
            vector(maths("a_i"), walk.read[walk.query].numpy()),
            tensor("A", walk.read.numpy(), note="what the heads read", marked=walk.query),
        )
    )
    size = shape(*walk.read.shape)
    return Step(title=f"Into block {walk.layer}", shape=f"{size} → {size}", content=content)
