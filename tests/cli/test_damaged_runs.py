"""Runs resumed from damaged files, or with another number of threads, by the command line."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from command import Command
from runs import CHANGES, metrics_of, weights_of
from vitlab.jobs.train import train

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


def test_a_deeply_nested_header_gives_way_to_the_checkpoint_before(
    run: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    newest = run / "checkpoints" / "step-00000004.safetensors"
    content = newest.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= {"vitlab-checksum": "0" * 8, "vitlab-training": "[" * 100_000}
    text = json.dumps(header, separators=(",", ":")).encode()
    changed = len(text).to_bytes(8, "little") + text + content[8 + length :]
    newest.write_bytes(changed.replace(b"0" * 8, b"%08x" % zlib.crc32(changed), 1))
    assert command("train", "--resume", "--out", run).code == 0
    assert "nested more than 100 levels deep" in caplog.text
    assert "goes on from step-00000002.safetensors" in caplog.text


def test_no_good_checkpoint_left_is_one_line(run: Path, command: Command) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        path.write_bytes(path.read_bytes().replace(b"metrics", b"mEtrics", 1))
    failed = command("train", "--resume", "--out", run)
    assert failed.code == 2
    assert failed.err.startswith("error: ")
    assert failed.err.count("\n") == 1
    assert "no other checkpoint can be read" in failed.err


def edit(run: Path, **changes: Any) -> None:
    """Change keys of the plan, and leave the checkpoint of step 2 as the newest."""
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (run / "checkpoints" / "step-00000004.safetensors").unlink()


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_run_goes_on_with_the_threads_that_it_began_with(
    two_threads: None, run: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    assert json.loads((run / "config.json").read_text())["threads"] == 2
    edit(run, threads=1)
    assert command("train", "--resume", "--out", run).code == 0
    assert "goes on with 1 threads, as it began, not with 2" in caplog.text
    assert torch.get_num_threads() == 2


def test_fewer_threads_than_a_run_began_with_are_a_warning(
    run: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    edit(run, threads=4096)
    assert command("train", "--resume", "--out", run).code == 0
    assert "began with 4096 threads" in caplog.text
    assert "will not be the same bit for bit" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("depth", 10**9),
        ("width", 2**64),
        ("width", 2**20),
        ("norm_eps", 10**400),
        ("channels", None),
    ],
)
def test_a_plan_of_an_impossible_model_is_one_line(
    run: Path, command: Command, key: str, value: Any
) -> None:
    model = json.loads((run / "config.json").read_text())["model"] | {key: value}
    edit(run, model={k: v for k, v in model.items() if v is not None})
    failed = command("train", "--resume", "--out", run)
    assert failed.code == 2
    assert failed.err.startswith("error: ")
    assert failed.err.count("\n") == 1
