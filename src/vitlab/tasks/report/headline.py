"""The first thing one sees: how good the model is, how sure that is, and what it cost."""

from collections.abc import Iterator

from vitlab.tasks.report.content import Report
from vitlab.tasks.report.markup import Html, element, join
from vitlab.tasks.report.numbers import duration, in_pflops, short
from vitlab.tasks.report.views import VIEWS


def draw_headline(report: Report) -> Html | None:
    """The figure that counts, with its interval, beside a few tiles."""
    tiles = [
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in _tiles(report)
    ]
    evaluation = report.evaluation
    if evaluation is None:
        return element("section", *tiles, class_="tiles") if tiles else None
    return element(
        "section",
        VIEWS[evaluation.task].figure(evaluation, report.split),
        element("div", *tiles, class_="tiles"),
        class_="headline",
    )


def findings(report: Report) -> Html | None:
    """What the numbers say, in sentences."""
    found = report.evaluation
    sentences = [*(VIEWS[found.task].findings(found) if found else ()), *report.notes]
    return element("p", " ".join(sentences), class_="findings") if sentences else None


def _tiles(report: Report) -> Iterator[tuple[str, str]]:
    evaluation = report.evaluation
    if evaluation is not None:
        yield from VIEWS[evaluation.task].tiles(evaluation)
    if report.model is not None:
        yield "parameters", short(report.model.parameters)
        yield "FLOPs per image", short(report.model.flops)
    if report.compute is not None:
        yield "training time", duration(report.compute.seconds)
        yield "training compute", in_pflops(report.compute.flops)


def heading(report: Report) -> Html:
    """Title and date."""
    return element(
        "header",
        element("p", join(["vitlab report"]), class_="over"),
        element("h1", report.title),
        None if report.made_at is None else element("p", report.made_at, class_="quiet"),
    )
