"""A disk that is full while a checkpoint is being written: one line, and nothing is lost."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Command
from runs import CHANGES, same, words
from vitlab.training.checkpoint import checkpoints, read_checkpoint

resource = pytest.importorskip("resource")

SETTINGS = CHANGES | {"evaluations": 1, "keep": 9}
"""So that checkpoints pile up, and nothing else is written on the way."""


def mount(folder: Path, options: str) -> None:
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine permits no small disk: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few pages, to be given its size by the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=64k")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a disk with room."""
    from vitlab.jobs.train import train

    return train(
        data="sample", out=tmp_path_factory.mktemp("runs") / "whole", changes=SETTINGS
    ).folder


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files cannot grow larger meanwhile, as with a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def steps_of(run: Path) -> list[int]:
    """The steps of the checkpoints, each of which can be read."""
    return [int(read_checkpoint(path).numbers["step"]) for path in checkpoints(run / "checkpoints")]


def test_a_full_disk(command: Command, small_disk: Path, whole: Path) -> None:
    size = checkpoints(whole / "checkpoints")[0].stat().st_size
    # Room for two checkpoints and a half; a page for each small file.
    mount(small_disk, f"remount,size={size * 5 // 2 + (64 << 10)}")
    run = small_disk / "run"
    outcome = command(*words(run, SETTINGS, "sample"))
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {run / 'checkpoints' / 'step-00000015.safetensors'}: ")
    assert outcome.err.endswith("cannot be written (No space left on device)\n")
    assert outcome.err.count("\n") == 1
    assert steps_of(run) == [10, 5]
    assert not list((run / "checkpoints").glob(".*"))
    again = command("train", "--out", run, "--resume")
    assert (again.code, steps_of(run)) == (2, [10, 5])
    mount(small_disk, f"remount,size={size * 20}")
    assert command("train", "--out", run, "--resume").code == 0
    assert same(run, whole)


def test_a_quota(command: Command, tmp_path: Path, whole: Path) -> None:
    run = tmp_path / "run"
    size = checkpoints(whole / "checkpoints")[0].stat().st_size
    with largest_file(size // 2):
        outcome = command(*words(run, SETTINGS, "sample"))
    assert outcome.code == 2
    assert "step-00000005.safetensors: cannot be written (File too large)" in outcome.err
    assert steps_of(run) == []
    assert command("train", "--out", run, "--resume").code == 0
    assert same(run, whole)


def test_no_room_for_a_single_line(command: Command, small_disk: Path) -> None:
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    outcome = command(*words(small_disk / "run", SETTINGS, "sample"))
    assert outcome.code == 2
    assert "No space left on device" in outcome.err
    assert outcome.err.count("\n") == 1
