"""Every experiment from end to end, as small as can be."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from vitlab.data import sample
from vitlab.data.images import ArraySet
from vitlab.experiments import lab
from vitlab.experiments.run import experiment
from vitlab.experiments.spec import Experiment
from vitlab.experiments.table import TABLE, named

READ = sample._read
FIGURES = {
    "norm-placement": {"accuracy", "differences", "gradients"},
    "attention-kind": {"accuracy", "differences", "cost"},
    "few-shot": {"accuracy"},  # a single seed of few shots has no interval
}


class Sections(HTMLParser):
    """Titles of a page; an error where a tag is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.titles.append(data)


@cache
def every_tenth(split: str) -> ArraySet:
    """A part of the sample, read once."""
    images = READ(split)
    return images.subset(torch.arange(0, len(images), 10))


@pytest.mark.parametrize("name", TABLE)
def test_smoke(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lab.SMOKE, "budget", 1.0)
    monkeypatch.setattr(sample, "_read", every_tenth)
    spec = named(name)
    found = experiment(name, out=tmp_path, smoke=True, seeds=1)
    assert found.failures == {}
    assert [result.arm for result in found.results] == [arm.name for arm in spec.arms]
    drawn = FIGURES.get(name, {"accuracy", "differences"})
    assert {path.stem for path in tmp_path.glob("*.svg")} == drawn
    page = Sections()
    page.feed(found.report.read_text())
    assert page.open == []
    assert {"Only a trial", "What the numbers say", "Arms", "Differences"} <= set(page.titles)
    assert "What failed" not in page.titles
    if "gradients" in drawn:
        _check_gradients(spec, found.results)


def _check_gradients(spec: Experiment, results: object) -> None:
    for result in results:  # type: ignore[attr-defined]
        assert len(result.probes["gradient_of_block"]) == 2
        assert min(result.probes["gradient_of_block"]) > 0
