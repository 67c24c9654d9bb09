"""Completion in a shell knows names of models, weights, data and recipes, and paths."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab.cli import completion

CASES = [
    ("vitlab finetune --from vit_ti16.d", {"vit_ti16.deit"}),
    ("vitlab train --data cifar", {"cifar10", "cifar100"}),
    ("vitlab train cifar10_pu", {"cifar10_pure"}),
    ("vitlab weights fetch vit_s14.", {"vit_s14.dinov2", "vit_s14.dinov2_reg4"}),
    ("vitlab data fetch dig", {"digits"}),
    ("vitlab summary vit_te", {"vit_test"}),
    ("vitlab predict cifar", {"cifar10"}),
]


def completed(line: str, folder: Path) -> set[str]:
    words = line.split()
    environment = {
        **os.environ,
        "_VITLAB_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys; sys.argv[0] = 'vitlab'; from vitlab.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(ran.stdout.split())


@pytest.mark.parametrize(("line", "found"), CASES)
def test_names(line: str, found: set[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == found


def test_paths_are_completed_beside_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-mine" / "a").mkdir(parents=True)
    (tmp_path / "cifar.zip").touch()
    found = completion.complete_data("cifar")
    assert found[-2:] == [f"cifar-mine{os.sep}", "cifar.zip"]
    assert "cifar10" in found
    assert completion.complete_data(f"cifar-mine{os.sep}") == [
        os.path.join("cifar-mine", "a") + os.sep
    ]
    assert completion.complete_dataset("cifar-") == []
