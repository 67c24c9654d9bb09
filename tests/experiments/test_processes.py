"""An experiment in several processes: the results of one, also if a process is stopped."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from processes import ROOT, outputs, start

SPEC = ROOT / "docs" / "experiments" / "dropout.toml"


def words(folder: Path) -> list[str]:
    """Command of the experiment."""
    return ["-m", "vitlab", "experiment", str(SPEC), "--out", str(folder)] + [
        *("--smoke", "--seeds", "1", "--json")
    ]


def results_of(folder: Path) -> dict[str, Any]:
    """Stored result of each arm."""
    found = sorted(folder.glob("arms/*/seed-0/result.json"))
    return {path.parts[-3]: json.loads(path.read_text()) for path in found}


@pytest.mark.slow
def test_two_processes_find_what_one_finds_and_stop_together(tmp_path: Path) -> None:
    alone, several = tmp_path / "alone", tmp_path / "several"
    outputs(start(1, words(alone)))
    processes = start(2, words(several))
    while not results_of(several):
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGTERM)
    outputs(processes, code=128 + signal.SIGTERM)
    assert 1 <= len(results_of(several)) < 3
    printed = outputs(start(2, words(several)))
    assert printed[1] == ""
    assert len(json.loads(printed[0])["arms"]) == 3
    expected, found = results_of(alone), results_of(several)
    assert found.keys() == expected.keys()
    for arm, result in found.items():
        for name in ("steps", "pflops", "images", "images_seen", "held_out"):
            assert result[name] == expected[arm][name], (arm, name)
        # Nearly equal weights: few images of 1,000 are close to a border between two classes.
        assert abs(result["value"] - expected[arm]["value"]) < 0.005
