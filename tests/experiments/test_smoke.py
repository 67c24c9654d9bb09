"""Every experiment from end to end, as small as can be."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from command import ROOT
from vitlab.config import from_dict, parse_json
from vitlab.data.images import ArraySet
from vitlab.data.sources import sample
from vitlab.data.sources.sample import open_sample
from vitlab.experiments import context
from vitlab.experiments import run as running
from vitlab.experiments.context import Context
from vitlab.experiments.folder import Record, check_arms
from vitlab.experiments.run import experiment
from vitlab.experiments.spec import NAMES, Experiment, named
from vitlab.experiments.training import part
from vitlab.jobs import pretrain_result as result
from vitlab.jobs import run_result as job_result

READ = sample._read
PROBES = {
    "norm-placement": ("gradient_of_block", "gradient"),
    "attention-kind": ("bytes", "seconds"),
}
QUICK = ("norm-placement", "attention-kind", "few-shot", "pretraining")
"""Studies of the default suite: each measure and probe once."""
FIGURES = {
    "norm-placement": {"accuracy", "differences", "gradients"},
    "attention-kind": {"accuracy", "differences", "cost"},
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
    return spec.only([arm.name for arm in spec.arms if arm.name not in left_out])


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
@pytest.mark.usefixtures("small")
def test_smoke(name: str, tmp_path: Path) -> None:
    check(thinned(named(name)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small")
def test_smoke_of_every_arm(name: str, tmp_path: Path) -> None:
    check(named(name), tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of a part of the sample, and no pictures."""
    monkeypatch.setitem(context.SMOKE, "budget", 1.0)
    monkeypatch.setattr(sample, "_read", every_tenth)
    monkeypatch.setattr(running, "KINDS", ("svg",))
    # The page of each training is tested elsewhere.
    monkeypatch.setattr(job_result, "write_report", lambda folder, report: folder / "report.html")
    monkeypatch.setattr(result, "_draw", lambda trained, model: ())


def check(spec: Experiment, tmp_path: Path) -> None:
    """Every arm trains, and all that an experiment leaves is there."""
    found = experiment(spec, out=tmp_path, smoke=True, seeds=1)
    assert found.failures == {}
    assert [done.arm for done in found.results] == [arm.name for arm in spec.arms]
    drawn = FIGURES.get(spec.name, {"accuracy", "differences"})
    assert {path.stem for path in tmp_path.glob("*.svg")} == drawn
    page = Sections()
    page.feed(found.report.read_text())
    assert page.open == []
    assert {"Smoke run: no conclusion", "Arms", "Differences"} <= set(page.titles)
    assert "What failed" not in page.titles
    for probe in PROBES.get(spec.name, ()):
        assert all(min(done.probes[probe]) > 0 for done in found.results)


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_is_one_that_can_be_trained(name: str, tmp_path: Path) -> None:
    source = open_sample(tmp_path)
    if named(name).measure == "few-shot":
        source = part(source, 0, 5)
    Context(
        experiment=named(name),
        folder=tmp_path,
        data="sample",
        source=source,
        smallest_class=5000,  # as in CIFAR-10
        minutes=1.0,
        smoke=False,
        precision="float32",
    ).check()


@pytest.mark.parametrize("name", NAMES)
def test_committed_results_are_those_of_the_bundled_settings(name: str, tmp_path: Path) -> None:
    folder = ROOT / "docs" / "experiments" / name
    record = from_dict(Record, parse_json((folder / "experiment.json").read_text()))
    spec = named(name).only([arm.name for arm in record.experiment.arms])
    images = ArraySet(
        images=torch.zeros(1, 3, 32, 32, dtype=torch.uint8).expand(50_000, -1, -1, -1),
        labels=torch.arange(50_000) % 10,
    )
    source = replace(open_sample(tmp_path), open_train=lambda: images)  # as many as in CIFAR-10
    context = Context(
        experiment=spec,
        folder=tmp_path,
        data="sample",
        source=part(source, 0, 5) if spec.measure == "few-shot" else source,
        smallest_class=5000,
        minutes=record.minutes,
        smoke=False,
        precision=record.precision,
    )
    check_arms(folder, record, context.check(), context.usual)
    assert {path.name for path in (folder / "arms").iterdir()} <= set(spec.by_name)
