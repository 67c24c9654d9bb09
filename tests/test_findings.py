"""The page of findings says what the results of the experiments beside it say."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from command import ROOT, script
from vitlab.experiments.estimates import SEED_DEVIATION
from vitlab.experiments.findings import Findings

PAGE = ROOT / "docs" / "experiments" / "findings.md"


def difference(against: str, **changes: Any) -> dict[str, Any]:
    gap = {"arm": "b", "against": against, "mean": 0.031, "low": 0.017, "high": 0.045}
    return gap | {"verdict": "better", "chosen": False, "beside": []} | changes


def arm(name: str, **changes: Any) -> dict[str, Any]:
    found = {"arm": name, "title": name.upper(), "mean": 0.53, "deviation": 0.0113, "steps": 1300}
    cost = {"pflops": 0.02, "before": 0.0, "minutes": 4.04, "train_accuracy": None}
    return found | cost | changes


@pytest.fixture
def page(tmp_path: Path) -> Path:
    results = {
        "arms": [arm("a"), arm("b", mean=0.561, deviation=None)],
        "differences": [
            difference("a"),
            difference("a", verdict="open", mean=-0.002, low=None, high=None),
            difference("a", chosen=True, verdict="open"),
            difference("a", beside=["b", "a"]),
        ],
        "conclusion": ["B is better."],
        "command": "vitlab experiment one",
    }
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "results.json").write_text(json.dumps(results))
    path = tmp_path / "page.md"
    path.write_text("# Found\n<!-- results of one -->\nold\n<!-- end of one -->\nBecause.\n")
    return path


def test_conclusion_and_table_stand_where_the_page_asks_for_them(page: Path) -> None:
    for _ in range(2):  # a second time changes nothing
        assert script("write-findings").main([str(page)]) == 0
        assert page.read_text().splitlines() == [
            "# Found",
            "<!-- results of one -->",
            "- B is better.",
            "",
            "| arm | accuracy | against | difference in points | PFLOPs | steps | minutes |",
            "| --- | --: | --- | --: | --: | --: | --: |",
            "| A | 53.0 ± 1.1 % |  |  | 0.0200 | 1,300 | 4.0 |",
            "| B | 56.1 % | A<br>A | **+3.1 (+1.7 to +4.5)**<br>-0.2 | 0.0200 | 1,300 | 4.0 |",
            "",
            "| arm | against | difference in points |",
            "| --- | --- | --: |",
            "| best of its series: B | best of its series: A | +3.1 (+1.7 to +4.5) |",
            "| B, over A | B, over A | **+3.1 (+1.7 to +4.5)** |",
            "",
            "`vitlab experiment one`",
            "<!-- end of one -->",
            "Because.",
        ]


def test_columns_that_some_arm_fills(page: Path) -> None:
    path = page.parent / "one" / "results.json"
    found = json.loads(path.read_text())
    found["arms"][1] |= {"before": 0.5, "minutes_before": 20, "train_accuracy": 0.875}
    path.write_text(json.dumps(found))
    assert script("write-findings").main([str(page)]) == 0
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("|")]
    assert (rows[0][2], rows[2][2], rows[3][2]) == ("of training images", "", "87.5 %")
    assert (rows[0][6], rows[2][6], rows[3][6]) == ("PFLOPs before", "", "0.5000")
    assert (rows[0][-1], rows[3][-1]) == ("minutes before |", "20.0 |")
    found["arms"], found["differences"] = [], []
    path.write_text(json.dumps(found))
    assert script("write-findings").main([str(page)]) == 0
    assert "|" not in page.read_text()


def test_an_experiment_that_is_not_there(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "<!-- results of two -->\n<!-- end of two -->\n"
    page.write_text(words)
    assert script("write-findings").main([str(page)]) == 2
    assert "two/results.json" in capsys.readouterr().err
    assert page.read_text() == words


def test_the_page_is_what_the_results_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert script("write-findings").filled(text, PAGE.parent) == text
    kept = {path.parent.name for path in PAGE.parent.glob("*/results.json")}
    assert all(f"<!-- results of {name} -->" in text for name in kept)


@pytest.fixture(scope="module")
def kept() -> dict[str, Findings]:
    """Findings of the committed experiments, counted again."""
    again = script("count-again")
    return {
        path.parent.name: again.findings_of(path.parent)
        for path in PAGE.parent.glob("*/experiment.json")
    }


def test_the_results_are_what_the_trainings_say(kept: dict[str, Findings]) -> None:
    assert kept
    for name, found in kept.items():
        stored = json.loads((PAGE.parent / name / "results.json").read_text(encoding="utf-8"))
        assert found.conclusion == stored["conclusion"]
        for item, old in zip(found.differences, stored["differences"], strict=True):
            numbers = [getattr(item, name) for name in ("mean", "low", "high", "p")]
            assert numbers == pytest.approx([old[name] for name in ("mean", "low", "high", "p")])
            assert (item.arm, item.against, item.verdict) == (
                *(old["arm"], old["against"], old["verdict"]),
            )


def test_the_deviation_between_seeds_is_that_of_the_experiments(kept: dict[str, Findings]) -> None:
    """Root mean square of the deviations of all paired differences with three seeds."""
    variances = []
    for found in kept.values():
        value = {(r.arm, r.seed): r.value for r in found.results if r.value is not None}
        for gap in found.differences:
            if gap.seeds >= 3 and not gap.beside:
                seeds = [
                    seed for arm, seed in value if arm == gap.arm and (gap.against, seed) in value
                ]
                pairs = [value[gap.arm, seed] - value[gap.against, seed] for seed in seeds]
                variances.append(statistics.variance(pairs))
    assert len(variances) > 40
    assert statistics.fmean(variances) ** 0.5 == pytest.approx(SEED_DEVIATION, rel=0.05)


def test_counting_again_writes_the_tables(tmp_path: Path) -> None:
    shutil.copytree(PAGE.parent / "shape", tmp_path / "shape")
    before = (tmp_path / "shape" / "differences.csv").read_text()
    (tmp_path / "shape" / "differences.csv").unlink()
    assert script("count-again").main([str(tmp_path / "shape")]) == 0
    assert (tmp_path / "shape" / "differences.csv").read_text() == before
    assert not list((tmp_path / "shape").glob("*.svg"))
    assert script("count-again").main([]) == 2
    assert script("count-again").main([str(tmp_path)]) == 2
