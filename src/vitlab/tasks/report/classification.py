"""One class an image: how often it is right, what is taken for what, and how sure it is."""

from collections.abc import Iterator

from vitlab.evaluate.classify import Evaluation
from vitlab.tasks.report.classes import draw_classes, table_of_classes
from vitlab.tasks.report.confusion import (
    draw_confusion,
    is_wide,
    list_confusions,
    top_confusions,
)
from vitlab.tasks.report.content import Report
from vitlab.tasks.report.facts import pairs
from vitlab.tasks.report.markup import Html, element
from vitlab.tasks.report.numbers import percent
from vitlab.tasks.report.pictures import draw_mistakes
from vitlab.tasks.report.reliability import calibration_facts, draw_confidences, draw_reliability
from vitlab.tasks.report.strip import draw_strip

Section = tuple[str, tuple[Html | None, ...]]
"""A title and what stands under it."""


def figure(evaluation: Evaluation, split: str) -> Html:
    """The accuracy and its interval."""
    low, high = evaluation.interval
    return element(
        "div",
        element("div", percent(evaluation.accuracy), class_="figure"),
        element(
            "p",
            f"of {evaluation.images:,} {split} images right at the first guess",
            element("br"),
            element("span", f"95% interval {percent(low)} to {percent(high)}", class_="quiet"),
        ),
        _strip(evaluation),
        class_="accuracy",
    )


def _strip(evaluation: Evaluation) -> Html:
    """The interval on a line from 0 to 100 %, with the accuracy of guessing."""
    present = sum(1 for item in evaluation.classes if item.support)
    chance = max((item.support for item in evaluation.classes), default=0) / evaluation.images
    return draw_strip(
        evaluation.accuracy,
        evaluation.interval,
        chance if present > 1 else None,
        "always one class",
        bounds=(0, 1),
    )


def tiles(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """More figures beside the accuracy."""
    if evaluation.top < len(evaluation.labels):
        yield f"top-{evaluation.top} accuracy", percent(evaluation.top5)
    yield "balanced accuracy", percent(evaluation.balanced)
    yield "cross-entropy", f"{evaluation.loss:.3f}"
    yield "calibration error", percent(evaluation.reliability.ece)


def findings(evaluation: Evaluation) -> Iterator[str]:
    """What the numbers say."""
    present = [item for item in evaluation.classes if item.support]
    if len(present) > 1:
        best = max(present, key=lambda item: item.recall or 0)
        worst = min(present, key=lambda item: item.recall or 0)
        if best.recall != worst.recall:
            yield (
                f"Recognised best: {best.label} ({percent(best.recall)} of its images); "
                f"least: {worst.label} ({percent(worst.recall)})."
            )
    confused = top_confusions(evaluation, 1)
    if confused:
        pair = confused[0]
        times = "once" if pair.count == 1 else f"{pair.count:,} times"
        yield f"Most frequent confusion: {pair.truth} taken for {pair.predicted}, {times}."
    yield from _sureness(evaluation)


def _sureness(evaluation: Evaluation) -> Iterator[str]:
    bins = [item for item in evaluation.reliability.bins if item.count]
    sure = sum(item.count * (item.confidence or 0) for item in bins) / evaluation.images
    gap = sure - evaluation.accuracy
    word = "about as sure as it may be" if abs(gap) < 0.02 else "surer than it should be"
    if gap <= -0.02:
        word = "less sure than it could be"
    right = percent(evaluation.accuracy)
    yield f"The model is {word}: mean confidence {percent(sure)} where {right} are right."


def sections(report: Report) -> Iterator[Section]:
    """Confusions, mistakes and calibration."""
    evaluation = report.evaluation
    assert isinstance(evaluation, Evaluation)
    matrix, bars = draw_confusion(evaluation), draw_classes(evaluation)
    shown: list[Html | None]
    if matrix is None or is_wide(evaluation):
        listed = list_confusions(evaluation, 20 if matrix is None else 12)
        shown = [matrix, element("div", bars, listed, class_="grid two")]
    else:
        beside = element("div", bars, list_confusions(evaluation, 5))
        shown = [element("div", matrix, beside, class_="grid matrix")]
    yield "Where it is right and wrong", (*shown, table_of_classes(evaluation))
    if report.mistakes:
        note = element(
            "p",
            "What the model said and how sure it was of it, and what the image is. "
            "The surest come first.",
            class_="quiet",
        )
        yield "The most confident mistakes", (note, draw_mistakes(report.mistakes))
    reliability = element(
        "div",
        draw_reliability(evaluation),
        element("div", draw_confidences(evaluation), pairs(calibration_facts(evaluation))),
        class_="grid two",
    )
    yield "Does it know when it is wrong?", (reliability,)
