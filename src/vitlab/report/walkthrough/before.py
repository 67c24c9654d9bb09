"""From the image to the input of the heads: the first part of the page."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8

from vitlab.explain.walkthrough import Walkthrough
from vitlab.models.config import ViTConfig, pair
from vitlab.report.html import Child, join
from vitlab.report.walkthrough.images import number, photograph, tensor, vector
from vitlab.report.walkthrough.words import (
    Step,
    formula,
    maths,
    numbers,
    paragraph,
    shape,
    tensors,
    token_name,
    worked_row,
)

Pixels = UInt8[np.ndarray, "H W 3"]


def steps_before(walk: Walkthrough, config: ViTConfig, pixels: Pixels) -> Iterator[Step]:
    """Steps for image, patches, tokens, prefix tokens, positions, and the block's input norm."""
    yield from _patches(walk, config, pixels)
    yield from _tokens(walk, config)
    yield from _prefix(walk, config)
    yield from _positions(walk, config)
    yield from _block_input(walk, config)


def _patch(walk: Walkthrough) -> int | None:
    """Patch that is followed, if the stem has the same grid as the block."""
    return walk.query - walk.prefix if walk.grid == walk.embedded.grid else None


def _patches(walk: Walkthrough, config: ViTConfig, pixels: Pixels) -> Iterator[Step]:
    embedded = walk.embedded
    rows, columns = embedded.grid
    count, sizes = rows * columns, tuple(embedded.image.shape)
    if embedded.flat is None:
        kind = "a ResNet" if config.stem == "resnet" else "a few convolutions"
        content: list[Child] = [
            paragraph(
                f"This model does not cut the image itself: {kind} turn it into a map of "
                f"{rows} × {columns} places, and each place becomes one token. The lines show the "
                f"part of the image that each place stands for; what it knows reaches a little "
                f"beyond."
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
            f"A transformer reads a sequence of vectors, not a picture. So the image is cut into "
            f"{rows} × {columns} = {count} patches of {height} × {width} pixels, and the "
            f"{height} × {width} × {config.channels} = {height * width * config.channels} numbers "
            f"of a patch are written one behind the other, channel by channel."
        )
    ]
    if config.stem == "shifted":
        content.append(
            paragraph(
                "This model (shifted patch tokenization) reads each patch together with those of "
                "four copies of the image, each moved diagonally by half a patch: five times as "
                "many numbers, and a view half a patch beyond the border of its own."
            )
        )
    if config.stem == "shifted" or config.patch_norm == "both":
        content.append(paragraph("A LayerNorm then brings the numbers of a patch to one size."))
    patch = _patch(walk)
    pictures: list[Child] = [
        photograph(pixels, f"The image, in {count} patches", grid=embedded.grid, patch=patch),
        tensor("X", numbers(embedded.flat), note="one patch a row", row=patch, side=300),
    ]
    if patch is not None:
        name = token_name(walk, walk.query, class_token=config.class_token)
        note = f"the pixels of {name}, normalised"
        pictures.append(vector(maths("x_i"), numbers(embedded.flat[patch]), note=note))
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
    if config.patch_norm != "none":
        content.append(paragraph("In this model a LayerNorm follows, so the numbers change again."))
    content.append(
        tensors(
            tensor("E", numbers(projection.weight), note="learned"),
            tensor("Z", numbers(embedded.patches), note="one token a row", row=patch),
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
    names = []
    if config.class_token:
        names.append("a class token, whose place is only to collect what the head will read")
    if config.registers:
        plural = "registers" if config.registers > 1 else "register"
        names.append(f"{config.registers} {plural}, room to keep things in")
    count, total = len(embedded.prefix), len(embedded.tokens)
    note = "learned" if embedded.prefix.any() else "learned; still zero, as it begins"
    yield Step(
        title="Learned tokens are put before them",
        shape=f"{shape(count, config.width)} and {shape(total - count, config.width)} → "
        f"{shape(total, config.width)}",
        content=[
            paragraph(
                f"The sequence begins with {' and '.join(names)}. They are learned and the same "
                f"for every image; from here on they are tokens like all others, and N = {total}."
            ),
            tensors(tensor("prefix", numbers(embedded.prefix), note=note)),
        ],
    )


def _positions(walk: Walkthrough, config: ViTConfig) -> Iterator[Step]:
    inside = {
        "relative": "the distance between two patches tells in their score (below)",
        "relative_bias": "the distance between two patches tells in their score (below)",
        "rope": "queries and keys are turned by their place (below)",
        "none": "this model is told nothing of it: it sees a bag of patches",
    }
    table = walk.embedded.positions if walk.layer_positions is None else walk.layer_positions
    if table is None:
        said = inside.get(config.position, "this model adds nothing to the tokens for it")
        yield Step(
            title="Positions",
            shape=shape(*walk.embedded.tokens.shape),
            content=[
                paragraph(
                    f"Attention would give the same if the patches were shuffled, so a model must "
                    f"be told where they lie. In this one, {said}."
                )
            ],
        )
        return
    kinds = {
        "learned1d": "one learned vector for each token",
        "learned2d": "half of it learned for the column, half for the row",
        "sincos2d": "sines and cosines of column and row, not learned",
        "conditional": "what a 3 × 3 convolution of the tokens around it gives (conditional "
        "positions); zeros beyond the border tell where the border is",
    }
    kind = kinds.get(config.position, "its own")
    at = (
        "before the first block"
        if walk.layer_positions is None
        else f"to the input of this block (block {walk.layer})"
    )
    result = walk.embedded.tokens if walk.layer_positions is None else walk.entering
    patch = walk.query if len(table) == len(walk.entering) else None
    content: list[Child] = [
        paragraph(
            f"Attention would give the same if the patches were shuffled, so a vector for its "
            f"place is added to each token, {at}: {kind}."
        ),
        formula("z_i ← z_i + p_i"),
    ]
    if patch is not None:
        before = float(result[patch, 0] - table[patch, 0])
        content.append(
            paragraph(
                maths("z_i[0]"),
                f" = {number(before)} + {number(float(table[patch, 0]))} = "
                f"{number(float(result[patch, 0]))}",
            )
        )
    content.append(
        tensors(
            tensor("P", numbers(table), row=patch),
            tensor("Z + P", numbers(result), row=patch),
        )
    )
    yield Step(
        title="Positions are added",
        shape=f"{shape(*table.shape)} + {shape(*table.shape)} → {shape(*table.shape)}",
        content=content,
    )


def _block_input(walk: Walkthrough, config: ViTConfig) -> Iterator[Step]:
    content: list[Child] = []
    if walk.layer:
        rows, columns = walk.grid
        others = "another of the same kind has" if walk.layer == 1 else f"{walk.layer} others have"
        content.append(
            paragraph(
                f"Before this block, {others} changed the tokens; what enters here is no longer "
                f"the patch alone. There are {rows} × {columns} patches{_halved(walk)}."
            )
        )
    if walk.norm_first:
        moved = " and moved" if config.norm_bias else ""
        content += [
            paragraph(
                "A LayerNorm brings every token to one size: its numbers less their mean, divided "
                f"by their standard deviation, then scaled{moved} by learned numbers."
            ),
            formula("a_i = LayerNorm(z_i)"),
        ]
    else:
        content.append(
            paragraph(
                join(
                    [
                        "In this model the LayerNorm comes after the sum, so the heads read the "
                        "tokens as they are: ",
                        maths("a_i = z_i"),
                        ".",
                    ]
                )
            )
        )
    content.append(
        tensors(
            vector(maths("z_i"), numbers(walk.entering[walk.query])),
            vector(maths("a_i"), numbers(walk.read[walk.query])) if walk.norm_first else None,
            tensor("A", numbers(walk.read), note="what the heads read", row=walk.query),
        )
    )
    size = shape(*walk.read.shape)
    yield Step(title=f"Into block {walk.layer}", shape=f"{size} → {size}", content=content)


def _halved(walk: Walkthrough) -> str:
    return "" if walk.grid == walk.embedded.grid else ", each the mean of 2 × 2 of those above"
