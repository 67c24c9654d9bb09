"""`vitlab experiment` as a user meets it."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from command import Command
from vitlab.errors import ExperimentStopped
from vitlab.experiments import context, run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "experiments" / "dropout.toml"


def test_a_file_of_the_users_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(context.SMOKE, "budget", 1.0)
    words = ("experiment", EXAMPLE, "--out", tmp_path / "out", "--smoke", "--seeds", 1)
    outcome = command(*words, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert [arm["arm"] for arm in found["arms"]] == ["none", "dropout", "stochastic-depth"]
    assert [gap["against"] for gap in found["differences"]] == ["none", "none"]
    assert Path(found["report"]).is_file()
    said = "This is a smoke run with tiny models and a few steps: nothing can be concluded from it."
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored["smoke"] is True
    assert found["conclusion"] == stored["conclusion"] == [said]
    assert {gap["verdict"] for gap in found["differences"]} == {"open"}
    page = Path(found["report"]).read_text()
    assert said in page
    assert "Smoke run: no conclusion" in page
    assert "points (" not in page
    assert "[3 of 3] stochastic depth of 0.1, seed 0" in outcome.err

    shown = command(*words)
    assert shown.code == 0
    assert said in shown.out
    assert "better" not in shown.out
    assert f"report: {found['report']}" in shown.out
    assert [line.split("  ")[0] for line in shown.out.splitlines()[2:5]] == [
        *("none", "dropout of 0.1", "stochastic depth of 0.1")
    ]


def test_stopped_it_says_how_to_continue(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any, **settings: Any) -> None:
        raise ExperimentStopped(signal.SIGTERM, 3, 30)

    monkeypatch.setattr(run, "experiment", stopped)
    outcome = command("experiment", "position", "--out", tmp_path, "--minutes", 2.5, "--seeds", 4)
    assert outcome.code == 143
    assert outcome.err == (
        "stopped after 3 of 30 trainings; the state is saved; continue: "
        f"vitlab experiment position --out {tmp_path} --seeds 4 --minutes 2.5\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["positon"], "unknown experiment 'positon'; did you mean position"),
        (["nothing.toml"], "nothing.toml: cannot be read"),
        (["position", "--smoke", "--minutes", "3"], "minutes 3 and smoke"),
        (["position", "--smoke", "--seeds", "0"], "seeds 0 is not at least 1"),
        (["position", "--minutes", "-1"], "minutes -1 is not a positive number"),
        (["position", "--smoke", "--data", "smaple"], "did you mean sample"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    place = tmp_path / "out"
    assert message in command("experiment", *arguments, "--out", place).mistake
    assert not place.exists()
