"""The first thing one sees: how good the model is, how sure that is, and what it cost."""

from collections.abc import Iterator

from vitlab.evaluate.classify import Evaluation
from vitlab.tasks.report.axes import Scale, svg, text
from vitlab.tasks.report.confusion import top_confusions
from vitlab.tasks.report.content import Report
from vitlab.tasks.report.markup import Html, element, join
from vitlab.tasks.report.numbers import duration, percent, short


def draw_headline(report: Report) -> Html | None:
    """The accuracy with its interval beside a few tiles."""
    tiles = [
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in _tiles(report)
    ]
    if report.evaluation is None:
        return element("section", *tiles, class_="tiles") if tiles else None
    return element(
        "section",
        _accuracy(report.evaluation, report.split),
        element("div", *tiles, class_="tiles"),
        class_="headline",
    )


def findings(report: Report) -> Html | None:
    """What the numbers say, in sentences."""
    sentences = (
        [*_findings(report.evaluation), *report.notes] if report.evaluation else report.notes
    )
    return element("p", " ".join(sentences), class_="findings") if sentences else None


def _accuracy(evaluation: Evaluation, split: str) -> Html:
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
    scale = Scale(low=0, high=1, start=6, end=334)
    low, high = evaluation.interval
    present = sum(1 for item in evaluation.classes if item.support)
    chance = max((item.support for item in evaluation.classes), default=0) / evaluation.images
    guess = scale(chance)
    return svg(
        element("rect", class_="track", x=6, y=10, width=328, height=8, rx=4),
        element(
            "rect",
            class_="filled",
            x=6,
            y=10,
            width=scale(evaluation.accuracy) - 6,
            height=8,
            rx=4,
        ),
        element(
            "rect",
            class_="interval",
            x=scale(low),
            y=6,
            width=max(scale(high) - scale(low), 2),
            height=16,
            rx=2,
        ),
        element("line", class_="chance", x1=guess, x2=guess, y1=4, y2=24) if present > 1 else None,
        text(max(guess, 40), 38, f"always one class {percent(chance)}", anchor="start")
        if present > 1
        else None,
        size=(340, 42),
        label="The accuracy and its interval between 0 and 100 percent",
    )


def _tiles(report: Report) -> Iterator[tuple[str, str]]:
    evaluation = report.evaluation
    if evaluation is not None:
        if evaluation.top < len(evaluation.labels):
            yield f"top-{evaluation.top} accuracy", percent(evaluation.top5)
        yield "cross-entropy", f"{evaluation.loss:.3f}"
        yield "calibration error", percent(evaluation.reliability.ece)
    if report.model is not None:
        yield "parameters", short(report.model.parameters)
        yield "FLOPs per image", short(report.model.flops)
    if report.compute is not None:
        yield "training time", duration(report.compute.seconds)
        yield "training FLOPs", short(report.compute.flops)


def _findings(evaluation: Evaluation) -> Iterator[str]:
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


def heading(report: Report) -> Html:
    """Title and date."""
    return element(
        "header",
        element("p", join(["vitlab report"]), class_="over"),
        element("h1", report.title),
        None if report.made_at is None else element("p", report.made_at, class_="quiet"),
    )
