"""Checkpoints that were damaged on the disk, through the command line."""

from pathlib import Path

import pytest

from command import Command
from runs import CHANGES, metrics_of, weights_of
from vitlab.tasks.train import train

STEPS = CHANGES | {"budget": 4.0, "evaluations": 1, "checkpoint_every": 2}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with checkpoints of the steps 2 and 4; resuming it writes its result anew."""
    return train(data="sample", out=tmp_path / "run", changes=STEPS).folder


@pytest.mark.usefixtures("no_type_checks")
def test_a_damaged_header_gives_way_to_the_checkpoint_before(
    run: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, weights = metrics_of(run), weights_of(run)
    newest = run / "checkpoints" / "step-00000004.safetensors"
    content = newest.read_bytes()
    length = int.from_bytes(content[:8], "little")
    step = content.index(b'\\"step\\": 4') + len(b'\\"step\\": ')
    for position in (step, 20, 8 + length // 2):
        changed = bytearray(content)
        changed[position] ^= 1
        newest.write_bytes(changed)
        shown = command("train", "--resume", "--out", run)
        assert shown.code == 0, (position, shown)
        assert "goes on from step-00000002.safetensors" in caplog.text, position
        caplog.clear()
        assert (metrics_of(run), weights_of(run)) == (metrics, weights)


def test_no_good_checkpoint_left_is_one_line(run: Path, command: Command) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        path.write_bytes(path.read_bytes().replace(b"metrics", b"mEtrics", 1))
    failed = command("train", "--resume", "--out", run)
    assert failed.code == 2
    assert failed.err.startswith("error: ")
    assert failed.err.count("\n") == 1
    assert "no other checkpoint can be read" in failed.err
