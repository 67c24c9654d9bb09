"""From the attention output to the answer: MLP, later blocks, head and probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from vitlab.explain.steps import Linear
from vitlab.models.config import ViTConfig
from vitlab.report.html import Child, join
from vitlab.report.language import say
from vitlab.report.numbers import number, percent
from vitlab.report.walkthrough.heads import Followed
from vitlab.report.walkthrough.parts import (
    Step,
    formula,
    marked_table,
    maths,
    paragraph,
    shape,
    tensor,
    tensors,
    vector,
    worked_row,
)

MOST = 10
"""Number of classes in a table, the likeliest first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Prediction of the model for the image."""

    labels: Sequence[str]
    activation: str
    """`softmax`, `sigmoid`, or `none` for values."""
    values: Float[Tensor, " classes"]
    """Probabilities, or values of a regression."""
    by_layer: Float[Tensor, "L classes"]
    """Those of the tokens that leave each block."""


def steps_of_mlp(followed: Followed) -> Iterator[Step]:
    """Steps of the second half of the block."""
    yield _widened(followed)
    yield _activated(followed)
    yield _narrowed(followed)


def steps_of_answer(followed: Followed, answer: Answer | None) -> Iterator[Step]:
    """Steps from the last block to the probabilities; without a head, to its input."""
    yield _read(followed)
    if answer is None:
        return
    yield _logits(followed, answer)
    if answer.activation != "none":
        yield _probabilities(followed, answer)
    yield _layers(followed, answer)


def _widened(followed: Followed) -> Step:
    walk, mlp = followed.walk, followed.walk.mlp
    query, width = walk.query, walk.mlp.wide.shape[1]
    return Step(
        title="The MLP: a second LayerNorm and a wider vector",
        shape=f"{shape(*mlp.read.shape)} · {shape(mlp.read.shape[1], width)} → "
        f"{shape(*mlp.wide.shape)}",
        content=[
            paragraph(
                "Attention has moved information between tokens. The second half of the block "
                "works on each token by itself: after another LayerNorm, one matrix, the same for "
                f"all tokens, makes {width} numbers of its {mlp.read.shape[1]}."
            ),
            formula("h_i = W^1 LayerNorm(z_i)" + ("" if mlp.widen.bias is None else " + b^1")),
            worked_row(
                f"h_i[0] = W^1[0] · LayerNorm(z_i){_bias(mlp.widen, 1)}", mlp.widen, mlp.read[query]
            ),
            tensors(
                tensor(maths("W^1"), mlp.widen.weight.numpy()),
                tensor("H", mlp.wide.numpy(), marked=query),
                vector(maths("h_i"), mlp.wide[query].numpy()),
            ),
        ],
    )


def _bias(layer: Linear, number: int) -> str:
    """Term of a formula; nothing for a layer without a bias."""
    return "" if layer.bias is None else f" + b^{number}[0]"


def _activated(followed: Followed) -> Step:
    walk, mlp = followed.walk, followed.walk.mlp
    before, after = mlp.wide[walk.query], mlp.active[walk.query]
    quiet = float((mlp.active.abs() < 0.2).double().mean())
    if followed.config.mlp_activation == "relu2":
        name, rule = "ReLU²", "g_i = max(h_i, 0)^2"
    else:
        name, rule = "GELU", "g_i = GELU(h_i)"
    return Step(
        title="The activation",
        shape=f"{shape(*mlp.wide.shape)} → {shape(*mlp.active.shape)}",
        content=[
            paragraph(
                f"{name} lets large numbers pass and brings negative ones near zero. Without it, "
                "the two matrices of the MLP could be replaced by one."
            ),
            formula(rule),
            paragraph(maths("g_i[0]"), f" = {name}({number(float(before[0]))}) = "
                      f"{number(float(after[0]))}"),
            paragraph(f"{percent(quiet, 0)} of all numbers in G are nearer to zero than 0.2."),
            tensors(tensor("G", mlp.active.numpy(), marked=walk.query)),
        ],
    )  # fmt: skip


def _narrowed(followed: Followed) -> Step:
    walk, mlp, query = followed.walk, followed.walk.mlp, followed.walk.query
    before, after = float(walk.leaving[query, 0]), float(mlp.leaving[query, 0])
    added = walk.added_as("m_i")
    size = shape(*mlp.leaving.shape)
    return Step(
        title="Back to the width of a token, and added",
        shape=f"{shape(*mlp.active.shape)} · {shape(*mlp.narrow.weight.T.shape)} → {size}",
        content=[
            paragraph(
                "A second matrix leads back to the width of a token, and the result is added to "
                "the token, as after the attention. This is the output of the block."
            ),
            formula("m_i = W^2 g_i" + ("" if mlp.narrow.bias is None else " + b^2")),
            worked_row(
                f"m_i[0] = W^2[0] · g_i{_bias(mlp.narrow, 2)}", mlp.narrow, mlp.active[query]
            ),
            formula(f"z_i ← z_i + {added}"),
            paragraph(
                maths("z_i[0]"), f" = {number(before)} + {number(after - before)} = {number(after)}"
            ),
            tensors(
                tensor(maths("W^2"), mlp.narrow.weight.numpy()),
                tensor("Z", mlp.leaving.numpy(), note="output of the block", marked=query),
            ),
        ],
    )


def _read(followed: Followed) -> Step:
    readout, config = followed.walk.readout, followed.config
    later = config.depth - followed.walk.layer - 1
    content: list[Child] = [
        paragraph(
            f"More blocks of the same kind follow, each with weights of its own: {later}."
            if later
            else "This was the last block."
        ),
        paragraph(_pooling(config)),
        formula(_pooling_formula(config)),
    ]
    shown = readout.last if readout.normed is None else readout.normed
    marked = 0 if config.pool == "cls" else None
    note = "what leaves the last block" if readout.normed is None else "after the last LayerNorm"
    content.append(
        tensors(
            tensor("Z", shown.numpy(), note=note, marked=marked),
            vector("y", readout.pooled.numpy(), note="what the head reads"),
        )
    )
    return Step(
        title="One vector for the image",
        shape=f"{shape(*shown.shape)} → {shape(*readout.pooled.shape)}",
        content=content,
    )


def _pooling(config: ViTConfig) -> str:
    return {
        "cls": "After the last block comes a last LayerNorm, and the class token alone is read: "
        "through all blocks, it has collected what the head needs.",
        "mean": "After the last block, the mean of all patch tokens is read.",
        "mean_all": "After the last block, the mean of all tokens is read.",
        "map": "After the last block, one more attention, with a learned query, sums up all "
        "tokens.",
    }[config.pool]


def _pooling_formula(config: ViTConfig) -> str:
    norm = {"tokens": "LayerNorm(z_{X})", "none": "z_{X}", "pooled": "z_{X}"}[config.norm_at]
    index = {"cls": "class token", "map": "j"}.get(config.pool, "j")
    one = norm.replace("X", say(index) if config.pool == "cls" else index)
    if config.pool == "cls":
        pooled = one
    elif config.pool == "map":
        pooled = f"Σ_j α_j {one}"
    else:
        pooled = f"1/N Σ_j {one}"
    return f"y = LayerNorm({pooled})" if config.norm_at == "pooled" else f"y = {pooled}"


def _logits(followed: Followed, answer: Answer) -> Step:
    readout = followed.walk.readout
    assert readout.head is not None
    assert readout.logits is not None
    read = readout.pooled if readout.hidden is None else readout.hidden
    classes = len(readout.logits)
    best = int(readout.logits.argmax())
    content: list[Child] = [
        paragraph(
            f"One last matrix, the head, has a row for each of the {classes} classes. The product "
            "of a row with y is the logit of its class: the larger, the better the image fits."
        )
    ]
    if readout.hidden is not None:
        content.append(paragraph("The head of this model has one more layer before it."))
    content += [
        formula("l = W^h y" + ("" if readout.head.bias is None else " + b^h")),
        worked_row(
            say(f"the logit of {answer.labels[0]}"),
            readout.head,
            read,
        ),
        tensors(
            tensor(maths("W^h"), readout.head.weight.numpy(), note="one class a row", marked=best),
            vector("l", readout.logits.numpy()),
        ),
    ]
    return Step(
        title="The head: one number for each class",
        shape=f"{shape(*readout.head.weight.shape)} · {shape(len(read))} → {shape(classes)}",
        content=content,
    )


def _probabilities(followed: Followed, answer: Answer) -> Step:
    logits = followed.walk.readout.logits
    assert logits is not None
    order = answer.values.argsort(descending=True, stable=True)[:MOST].tolist()
    rows: list[tuple[str, Sequence[str]]] = [
        (
            "own" if place == 0 else "",
            [
                answer.labels[index],
                number(float(logits[index])),
                percent(float(answer.values[index]), 2),
            ],
        )
        for place, index in enumerate(order)
    ]
    said = (
        "A softmax over the classes, the same function as in the attention, turns the logits into "
        "probabilities that sum to one."
        if answer.activation == "softmax"
        else "A sigmoid turns each logit into a probability of its own: several labels may be "
        "present."
    )
    rule = "p_c = exp(l_c) / Σ_k exp(l_k)" if answer.activation == "softmax" else "p_c = σ(l_c)"
    return Step(
        title="Probabilities",
        shape=f"{shape(len(logits))} → {shape(len(logits))}",
        content=[
            paragraph(said),
            formula(rule),
            marked_table(["class", "logit", "probability"], rows),
            paragraph(
                f"The prediction for this image: {answer.labels[order[0]]}, "
                f"{percent(float(answer.values[order[0]]))}."
            ),
        ],
    )


def _layers(followed: Followed, answer: Answer) -> Step:
    best = int(answer.by_layer[-1].argmax())
    shares = answer.activation != "none"

    def written(value: float) -> str:
        return percent(value) if shares else number(value)

    rows: list[tuple[str, Sequence[str]]] = [
        (
            "own" if layer == followed.walk.layer else "",
            [
                say(f"block {layer}"),
                answer.labels[int(values.argmax())],
                written(float(values.max())),
                written(float(values[best])),
            ],
        )
        for layer, values in enumerate(answer.by_layer)
    ]
    heads = ["after", "largest", "", join([answer.labels[best]])]
    return Step(
        title="How the answer forms",
        shape=f"{len(rows)} × {shape(len(answer.labels))}",
        content=[
            paragraph(
                "The last LayerNorm and the head can be applied to the tokens after any block. "
                "They were trained for the last one only, so the first rows mean little; but they "
                "show from which block on the answer stands."
            ),
            marked_table(heads, rows),
        ],
    )
