"""The most confident mistakes, as images inside the page."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vitlab.data.images import ArraySet, ImageSet
from vitlab.evaluation.classification import Outcome, confident_mistakes
from vitlab.evaluation.multilabel import worst_labels
from vitlab.evaluation.regression import worst_values
from vitlab.images.statistics import shown
from vitlab.report.html import Html, element, png_url
from vitlab.report.language import say
from vitlab.report.numbers import percent
from vitlab.report.run.content import Mistake

COUNT = 24
SIDE = 144
"""Longest side of an image in the page, in pixels."""
PIXELATED = 96
"""Images smaller than this show their pixels instead of a blur."""


def mistakes_in(
    outcome: Outcome, data: ImageSet, labels: Sequence[str], count: int = COUNT
) -> tuple[Mistake, ...]:
    """Most confident mistakes of the model, with the images."""
    found = []
    for row in confident_mistakes(outcome, count).tolist():
        probabilities = outcome.logits[row].double().softmax(dim=0)
        predicted, truth = int(probabilities.argmax()), int(outcome.labels[row])
        number = int(outcome.index[row])
        found.append(
            Mistake(
                image=_pixels(data, number),
                name=_name(data, number),
                truth=labels[truth],
                predicted=labels[predicted],
                probability=float(probabilities[predicted]),
                truth_probability=float(probabilities[truth]),
            )
        )
    return tuple(found)


def wrong_labels_in(
    outcome: Outcome, data: ImageSet, labels: Sequence[str], count: int = COUNT
) -> tuple[Mistake, ...]:
    """Images with a label that the model confidently missed or predicted wrongly."""
    found = []
    for row in worst_labels(outcome, count):
        probabilities, truth = outcome.logits[row].double().sigmoid(), outcome.labels[row]
        given, number = probabilities >= 0.5, int(outcome.index[row])
        wrong = (given != truth).nonzero()[:, 0]
        worst = int(wrong[(probabilities[wrong] - 0.5).abs().argmax()])
        found.append(
            Mistake(
                image=_pixels(data, number),
                name=_name(data, number),
                truth=_listed(truth.tolist(), labels),
                predicted=_listed(given.tolist(), labels),
                badge=f"{labels[worst]} {percent(float(probabilities[worst]), 0)}",
            )
        )
    return tuple(found)


def wrong_values_in(
    outcome: Outcome, data: ImageSet, labels: Sequence[str], count: int = COUNT
) -> tuple[Mistake, ...]:
    """Images with the largest errors in values."""
    found = []
    for row in worst_values(outcome, count):
        predicted, truth = outcome.logits[row].tolist(), outcome.labels[row].tolist()
        number = int(outcome.index[row])
        found.append(
            Mistake(
                image=_pixels(data, number),
                name=_name(data, number),
                truth=", ".join(f"{value:.4g}" for value in truth),
                predicted=", ".join(f"{value:.4g}" for value in predicted),
                badge=f"{predicted[0] - truth[0]:+.3g}",
            )
        )
    return tuple(found)


def _listed(marks: Sequence[bool], labels: Sequence[str]) -> str:
    return ", ".join(label for label, mark in zip(labels, marks, strict=True) if mark) or "nothing"


def _name(data: ImageSet, number: int) -> str:
    return f"image {number}" if isinstance(data, ArraySet) else str(data.name(number))


def draw_mistakes(note: str, mistakes: Sequence[Mistake]) -> tuple[Html, Html]:
    """Draw a grid of images with their true and predicted labels, below a note on what it shows."""
    grid = element("div", *map(_card, mistakes), class_="pictures")
    return element("p", say(note), class_="quiet"), grid


def _card(mistake: Mistake) -> Html:
    small = max(mistake.image.shape[:2]) < PIXELATED
    sure = "" if mistake.truth_probability is None else f": {percent(mistake.truth_probability)}"
    badge = percent(mistake.probability) if mistake.badge is None else mistake.badge
    picture = element(
        "img",
        src=_png(mistake.image),
        alt=say(f"{mistake.truth}, taken for {mistake.predicted}"),
        title=f"{mistake.name}; {mistake.truth}{sure}",
        class_="pixelated" if small else None,
    )
    return element(
        "div",
        element("div", picture, element("span", badge), class_="frame"),
        element("div", say("said "), element("b", mistake.predicted), class_="said"),
        element("div", say("is "), element("b", mistake.truth), class_="truth"),
        class_="picture",
    )


def _pixels(data: ImageSet, number: int) -> UInt8[np.ndarray, "H W C"]:
    if isinstance(data, ArraySet):
        return data.images[number].permute(1, 2, 0).numpy()
    image = shown(data.source(number))
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)


def _png(pixels: UInt8[np.ndarray, "H W C"]) -> str:
    """Data URL of a PNG; of other than 1 or 3 channels, as many as can be shown."""
    colours = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
    image = Image.fromarray(np.ascontiguousarray(colours))
    image.thumbnail((SIDE, SIDE))
    return png_url(image)
