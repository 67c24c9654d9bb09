"""The page: parts and steps, numbered, from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.report.html import Child, Html, element, page
from vitlab.report.language import say
from vitlab.report.walkthrough.after import Answer, steps_of_answer, steps_of_mlp
from vitlab.report.walkthrough.before import steps_before
from vitlab.report.walkthrough.heads import (
    Followed,
    steps_of_a_query,
    steps_of_heads,
    steps_of_matrices,
)
from vitlab.report.walkthrough.parts import Step, paragraph, tensor

TITLE = "One image through a Vision Transformer, step by step"
Parts = Sequence[tuple[str, Sequence[Step]]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Content of the page, with its model and image."""

    followed: Followed
    answer: Answer | None
    """None for a model without a head."""
    model: str
    image: str
    fresh: bool
    """True if the weights are random, not trained."""


def render(shown: Page) -> str:
    """The whole page, self-contained."""
    followed = shown.followed
    parts: Parts = [
        (
            "From the image to tokens",
            list(steps_before(followed.walk, followed.config, followed.pixels)),
        ),
        ("One query, by hand", list(steps_of_a_query(followed))),
        ("All queries at once", list(steps_of_matrices(followed))),
        ("All heads, and back to the tokens", list(steps_of_heads(followed))),
        ("The MLP", list(steps_of_mlp(followed))),
        ("From the last block to the answer", list(steps_of_answer(followed, shown.answer))),
    ]
    return page(
        say(TITLE),
        *_opening(shown, parts),
        *_numbered(parts),
        _check(followed),
        kind="lesson",
        note=" Numbers are shown to four digits.",
    )


def _opening(shown: Page, parts: Parts) -> list[Child]:
    followed, walk = shown.followed, shown.followed.walk
    config = followed.config
    fresh = paragraph(
        "The weights of this model are random: it has not been trained. Every step is right, but "
        "what the head looks at means nothing."
    )
    titles = [step.title for _, steps in parts for step in steps]
    entries = [
        element("li", element("a", say(title), href=f"#step-{place}"))
        for place, title in enumerate(titles, 1)
    ]
    return [
        element("h1", say(TITLE)),
        element("p", say(f"Image: {shown.image}. Model: {shown.model}."), class_="quiet"),
        element("div", fresh, class_="notice") if shown.fresh else None,
        paragraph(
            f"This page follows one image through a Vision Transformer with the real numbers, from "
            f"pixels to probabilities. Inside the encoder it follows one token, "
            f"{followed.name(walk.query)} (row and column, from 0), through one head: head "
            f"{walk.number} of {config.heads}, in block {walk.layer} of {config.depth} (from 0). "
            f"First everything is done for that one token, then for all at once."
        ),
        paragraph(
            "A tensor is shown as an image, one cell a number: ",
            element("span", class_="swatch positive"),
            " is above zero, ",
            element("span", class_="swatch negative"),
            " below, the stronger the farther; the page's own colour is zero. Its shape stands in "
            "square brackets, rows first. A frame marks the row of the token that is followed.",
        ),
        element("ol", *entries, class_="contents"),
    ]


def _numbered(parts: Parts) -> list[Html]:
    shown, place = [], 0
    for title, steps in parts:
        shown.append(element("h2", say(title)))
        for step in steps:
            place += 1
            shown.append(
                element(
                    "section",
                    element("h3", f"{place}. {say(step.title)}"),
                    element("p", say(step.shape), class_="shape"),
                    *step.content,
                    class_="step",
                    id=f"step-{place}",
                )
            )
    return shown


def _check(followed: Followed) -> Html:
    walk = followed.walk
    return element(
        "section",
        element("h2", say("Is this what the model computes?")),
        paragraph(
            "Yes. Everything above was computed step by step from the model's parameters, with "
            "64-bit numbers. The model itself, which goes another and faster way, gives the same "
            "attention output, block output and logits: they differ by at most "
            f"{walk.difference:.1e} of the largest number."
        ),
        element(
            "div",
            tensor("O", walk.projected.numpy(), note="step by step", marked=walk.query),
            tensor("O", walk.own.numpy(), note="by the model itself", marked=walk.query),
            class_="tensors",
        ),
    )
