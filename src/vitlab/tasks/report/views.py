"""How each task is shown: its figure, tiles, sentences and sections."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vitlab.tasks.report import classification, labels, values
from vitlab.tasks.report.classification import Section
from vitlab.tasks.report.content import Report
from vitlab.tasks.report.markup import Html


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a page shows of an evaluation of one task."""

    figure: Callable[[Any, str], Html]
    """The number that counts, given the evaluation and the split."""
    tiles: Callable[[Any], Iterator[tuple[str, str]]]
    findings: Callable[[Any], Iterator[str]]
    sections: Callable[[Report], Iterator[Section]]


VIEWS = {
    task: View(
        figure=module.figure,
        tiles=module.tiles,
        findings=module.findings,
        sections=module.sections,
    )
    for task, module in (
        ("single-label", classification),
        ("multi-label", labels),
        ("regression", values),
    )
}
