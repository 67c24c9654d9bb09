"""Every experiment from end to end, as small as can be."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from vitlab.data import sample
from vitlab.data.images import ArraySet
from vitlab.data.sample import open_sample
from vitlab.experiments import lab, write
from vitlab.experiments.classes import part
from vitlab.experiments.lab import Lab
from vitlab.experiments.run import experiment
from vitlab.experiments.spec import Experiment
from vitlab.experiments.table import TABLE, named
from vitlab.tasks import job_result
from vitlab.tasks.pretraining import result

READ = sample._read
PROBES = {
    "norm-placement": ("gradient_of_block", "gradient"),
    "attention-kind": ("bytes", "seconds"),
}
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


def thinned(spec: Experiment) -> Experiment:
    """Of a series, the first arm; of other trainings, the first three and the last."""
    single = [arm for arm in spec.arms if not arm.series and arm.how == "train"]
    left_out = {arm.name for arm in single[3:-1]}
    left_out |= {arm.name for arms in spec.series.values() for arm in arms[1:]}
    arms = (
        replace(arm, against=tuple(other for other in arm.against if other not in left_out))
        for arm in spec.arms
        if arm.name not in left_out
    )
    return replace(spec, arms=tuple(arms))


@pytest.mark.parametrize("name", TABLE)
def test_smoke(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lab.SMOKE, "budget", 1.0)
    monkeypatch.setattr(sample, "_read", every_tenth)
    monkeypatch.setattr(write, "KINDS", ("svg",))
    # The page of each training is tested elsewhere.
    monkeypatch.setattr(job_result, "write_report", lambda folder, report: folder / "report.html")
    monkeypatch.setattr(result, "_draw", lambda trained, model: ())
    spec = thinned(named(name))
    found = experiment(spec, out=tmp_path, smoke=True, seeds=1)
    assert found.failures == {}
    assert [done.arm for done in found.results] == [arm.name for arm in spec.arms]
    drawn = FIGURES.get(name, {"accuracy", "differences"})
    assert {path.stem for path in tmp_path.glob("*.svg")} == drawn
    page = Sections()
    page.feed(found.report.read_text())
    assert page.open == []
    assert {"Only a trial", "What the numbers say", "Arms", "Differences"} <= set(page.titles)
    assert "What failed" not in page.titles
    for probe in PROBES.get(name, ()):
        assert all(min(done.probes[probe]) > 0 for done in found.results)


@pytest.mark.parametrize("name", TABLE)
def test_every_arm_is_one_that_can_be_trained(name: str, tmp_path: Path) -> None:
    source = open_sample(tmp_path)
    if named(name).measure == "few-shot":
        source = part(source, 0, 5)
    Lab(
        experiment=named(name),
        folder=tmp_path,
        data="sample",
        source=source,
        smallest_class=300,
        minutes=1.0,
        smoke=False,
        precision="float32",
    ).check()
