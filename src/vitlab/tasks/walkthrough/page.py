"""The page: parts and steps, numbered, from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab import __version__
from vitlab.tasks.report.markup import Child, Html, element
from vitlab.tasks.walkthrough.before import Pixels, steps_before
from vitlab.tasks.walkthrough.matrix import steps_of_heads, steps_of_matrices
from vitlab.tasks.walkthrough.pictures import tensor
from vitlab.tasks.walkthrough.query import Followed, steps_of_a_query
from vitlab.tasks.walkthrough.style import STYLE
from vitlab.tasks.walkthrough.words import Step, numbers, paragraph

Parts = Sequence[tuple[str, Sequence[Step]]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is told, and of which model and image."""

    followed: Followed
    model: str
    image: str
    fresh: bool
    """The weights are random: nobody has trained them."""


def render(page: Page) -> str:
    """The whole page, with everything it needs inside."""
    followed = page.followed
    pixels: Pixels = followed.pixels
    parts: Parts = [
        ("From the image to tokens", list(steps_before(followed.walk, followed.config, pixels))),
        ("One query, by hand", list(steps_of_a_query(followed))),
        ("All queries at once", list(steps_of_matrices(followed))),
        ("All heads, and back to the tokens", list(steps_of_heads(followed))),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", "One attention head, step by step"),
        element("style", Html(STYLE)),
    )
    main = element(
        "main",
        *_opening(page, parts),
        *_numbered(parts),
        _check(followed),
        element("footer", f"Made by vitlab {__version__}. Numbers are shown to four digits."),
    )
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


def _opening(page: Page, parts: Parts) -> list[Child]:
    followed, walk = page.followed, page.followed.walk
    config = followed.config
    fresh = paragraph(
        "The weights of this model are random: nobody has trained it. Every step is right, but "
        "what the head looks at means nothing."
    )
    titles = [step.title for _, steps in parts for step in steps]
    entries = [
        element("li", element("a", title, href=f"#step-{place}"))
        for place, title in enumerate(titles, 1)
    ]
    return [
        element("h1", "One attention head, step by step"),
        element("p", f"{page.image} through {page.model}", class_="quiet"),
        element("div", fresh, class_="notice") if page.fresh else None,
        paragraph(
            f"A Vision Transformer looks at an image with attention. This page follows one image "
            f"through one of its heads with the real numbers: {followed.name(walk.query)} (row and "
            f"column, from 0) is the token that asks, in head {walk.number} of "
            f"{config.heads}, in block {walk.layer} of {config.depth}. First everything is done "
            f"for that one token, then for all at once."
        ),
        paragraph(
            "A tensor is shown as a picture, one cell a number: ",
            element("span", class_="key positive"),
            " is above zero, ",
            element("span", class_="key negative"),
            " below, the stronger the farther; the page's own colour is zero. Its shape stands in "
            "square brackets, rows first. A frame marks the row of the token that asks.",
        ),
        element("ol", *entries, class_="contents"),
    ]


def _numbered(parts: Parts) -> list[Html]:
    shown, place = [], 0
    for title, steps in parts:
        shown.append(element("h2", title))
        for step in steps:
            place += 1
            shown.append(
                element(
                    "section",
                    element("h3", f"{place}. {step.title}"),
                    element("p", step.shape, class_="shape"),
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
        element("h2", "Is this what the model computes?"),
        paragraph(
            "Yes. Everything above was computed step by step from the model's parameters, with "
            "64-bit numbers. The model's own attention, which goes another and faster way, gives "
            "for the same tokens a matrix O that differs by at most "
            f"{walk.difference:.1e} of its largest number."
        ),
        element(
            "div",
            tensor("O", numbers(walk.projected), note="step by step", row=walk.query),
            tensor("O", numbers(walk.own), note="by the model itself", row=walk.query),
            class_="tensors",
        ),
    )
