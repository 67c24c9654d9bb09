"""`.ci/run` runs every check, and fails as the first that fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[1] / ".ci" / "run"
STEPS = ["make test", "ruff check .", "ruff format --check .", "mypy"]


def run_with_failing(step: str | None, folder: Path) -> tuple[int, list[str]]:
    """Exit code, and the steps taken, where one of them exits with 7."""
    log, bin = folder / "log", folder / ".venv" / "bin"
    bin.mkdir(parents=True)
    (folder / ".ci").mkdir()
    shutil.copy(RUN, folder / ".ci" / "run")
    for name in ("make", "ruff", "mypy"):
        lines = ["#!/bin/sh", f'words="{name}${{1:+ $*}}"', f'echo "$words" >> "{log}"']
        (bin / name).write_text("\n".join([*lines, f'[ "$words" != "{step}" ] || exit 7']))
        (bin / name).chmod(0o755)
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([folder / ".ci" / "run"], env=os.environ | {"PATH": path}, check=False)
    return done.returncode, log.read_text().splitlines()


def test_all_steps_are_taken(tmp_path: Path) -> None:
    assert run_with_failing(None, tmp_path) == (0, STEPS)


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_the_first_failing_step_decides(number: int, tmp_path: Path) -> None:
    code, taken = run_with_failing(STEPS[number], tmp_path)
    assert (code, taken) == (7, STEPS[: number + 1])
