"""Mutated files of every kind: each is read, or refused in one line.

A failure names target, seed and case, and where the files are. To run it again:
`PYTHONPATH=src:tests python -m fuzz TARGET --seed SEED --first CASE --cases 1`.

The default suite runs a few cases of each target. The slow suite runs many, in a process with
bounded memory; VITLAB_FUZZ_CASES and VITLAB_FUZZ_SEED say how many and which.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import ROOT
from fuzz.engine import Target, fuzz
from fuzz.targets import TARGETS

SEED = int(os.environ.get("VITLAB_FUZZ_SEED", "0"))
CASES = os.environ.get("VITLAB_FUZZ_CASES", "1000")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_type_checks: None) -> None:
    """No data or cache of the user, and no checks that users do not have."""
    for name in ("VITLAB_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("VITLAB_DEBUG", "1")


@pytest.mark.parametrize(
    "target", [pytest.param(target, id=target.name) for target in TARGETS if target.short]
)
def test_mutated_files_are_read_or_refused(target: Target, tmp_path: Path) -> None:
    failures = fuzz(target, folder=tmp_path / "fuzz", seed=SEED, cases=target.cases)
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_many_mutated_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    words = ["--seed", str(SEED), "--cases", CASES, "--folder", str(tmp_path / "fuzz")]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", name, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([f"{ROOT}/src", f"{ROOT}/tests"])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
