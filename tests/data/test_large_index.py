"""The index of very many samples: its size, what processes share, and how fast a run resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no smaps")


@pytest.mark.parametrize(
    ("samples", "most"),
    [(300_000, 30e6), pytest.param(10_000_000, 1e9, marks=pytest.mark.slow)],
)
def test_the_index_is_small_shared_and_opened_at_once(
    tmp_path: Path, samples: int, most: float
) -> None:
    script, found = ROOT / "benchmarks" / "shard_index.py", tmp_path / "found.json"
    subprocess.run(
        [sys.executable, script, "--samples", str(samples), "--json", found],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    measured = json.loads(found.read_text())
    assert measured["bytes"] < most
    assert measured["own bytes of a worker"] < 5e6
    assert measured["shared bytes of a worker"] < 0.7 * measured["bytes"] + 5e6
    assert measured["processor"] < 1  # a loaded machine takes longer by the clock
