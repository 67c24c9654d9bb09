"""The page: parts and steps, numbered, from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab import __version__
from vitlab.report.html import Child, Html, element
from vitlab.report.style import DARK, LIGHT
from vitlab.report.walkthrough.before import Pixels, steps_before
from vitlab.report.walkthrough.images import tensor
from vitlab.report.walkthrough.matrix import steps_of_heads, steps_of_matrices
from vitlab.report.walkthrough.query import Followed, steps_of_a_query
from vitlab.report.walkthrough.words import Step, numbers, paragraph

# Style of the walkthrough: the report's colours, one column to read from top to bottom.

RULES = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 900px; margin: 0 auto; padding: 40px 28px 48px; }
h1 { font-size: 32px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 23px; line-height: 1.3; margin: 56px 0 6px; padding-top: 22px;
  border-top: 2px solid var(--ink); }
h3 { font-size: 18px; line-height: 1.35; margin: 0 0 2px; }
p { margin: 0 0 12px; max-width: 70ch; }
ol.contents { margin: 16px 0 0; padding-left: 22px; columns: 2; column-gap: 36px; font-size: 15px; }
a { color: var(--blue); text-decoration: none; }
a:hover { text-decoration: underline; }
.quiet, figcaption, footer { color: var(--quiet); }
.notice { border-left: 4px solid var(--orange); background: var(--card); padding: 10px 14px;
  border-radius: 0 8px 8px 0; margin: 12px 0 16px; }
.notice p { margin: 0; }
.step { margin: 28px 0 0; padding: 20px 22px 12px; background: var(--card); border-radius: 12px; }
.shape { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  color: var(--blue); margin: 0 0 10px; overflow-wrap: anywhere; }
.formula { font: italic 18px/1.7 Georgia, "Times New Roman", "DejaVu Serif", serif;
  margin: 2px 0 12px; overflow-wrap: anywhere; white-space: pre-wrap; }
.formula sub, .formula sup { font-size: 12px; line-height: 0; }
.worked { font: 13px/1.7 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  border-left: 3px solid var(--rule); padding-left: 12px; overflow-wrap: anywhere;
  max-width: none; }
.tensors { display: flex; flex-wrap: wrap; gap: 18px 26px; align-items: flex-start;
  margin: 4px 0 14px; }
figure { margin: 0; min-width: 0; max-width: 100%; }
figcaption { font-size: 13px; line-height: 1.45; margin-top: 5px; max-width: 60ch; }
figcaption b { color: var(--ink); font-weight: 600; }
.tensor { flex: 0 1 auto; }
.tensor:has(.strip) { flex: 1 1 100%; }
.strip, .matrix { position: relative; background: var(--paper); border: 1px solid var(--rule);
  max-width: 100%; }
.strip { height: 22px; width: 100%; }
.cells { display: block; width: 100%; height: 100%; image-rendering: pixelated; }
.marked { position: absolute; outline: 2px solid var(--ink); left: 0; right: 0; min-height: 2px; }
.picture { flex: 0 1 300px; }
.picture.small { flex: 0 1 150px; }
.photo { display: block; width: 100%; height: auto; border-radius: 6px; }
.scroll { overflow-x: auto; margin: 4px 0 14px; min-width: 0; max-width: 100%; }
.tensors .scroll { margin: 0; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--quiet); font-weight: 400; vertical-align: bottom; }
tr.own td { color: var(--orange); font-weight: 600; }
tr.total td { font-weight: 600; border-bottom: none; }
.key { display: inline-block; width: 14px; height: 14px; border-radius: 3px; vertical-align: -2px;
  border: 1px solid var(--rule); }
.key.positive { background: rgb(213, 94, 0); } .key.negative { background: rgb(0, 114, 178); }
footer { font-size: 13px; margin-top: 48px; border-top: 1px solid var(--rule); padding-top: 14px; }
@media (max-width: 640px) {
  main { padding: 24px 14px 32px; }
  h1 { font-size: 26px; } h2 { font-size: 20px; margin-top: 40px; }
  .step { padding: 16px 14px 8px; margin-left: -4px; margin-right: -4px; }
  ol.contents { columns: 1; }
  .formula { font-size: 16px; }
  .picture.small { flex-basis: calc(50% - 13px); }
  th, td { padding-right: 10px; font-size: 13px; }
}
@media print { .step { break-inside: avoid; background: none; border: 1px solid var(--rule); } }
"""
STYLE = (
    f":root {{ color-scheme: light dark; {LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n{RULES}"
)


Parts = Sequence[tuple[str, Sequence[Step]]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Content of the page, with its model and image."""

    followed: Followed
    model: str
    image: str
    fresh: bool
    """True if the weights are random, not trained."""


def render(page: Page) -> str:
    """The whole page, self-contained."""
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
