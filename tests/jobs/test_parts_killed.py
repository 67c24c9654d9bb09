"""Predictions and features in parts by processes that are killed: the same bytes after merging."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.shard_files import write_folder
from processes import ROOT, outputs, start
from vitlab.cli.main import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
SMALL = """
import os, signal, sys
import vitlab.jobs.parts.parts
from vitlab.cli.main import run
vitlab.jobs.parts.parts.IMAGES, left = 10, 2
replace = os.replace

def count(source, target):
    global left
    if ".parts/0" in str(target):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = count
sys.exit(run(sys.argv[1:]))
"""
"""`vitlab` with parts of at most ten images, killed with its second one."""


@pytest.mark.parametrize(("job", "ending"), [("predict", "csv"), ("features", "npz")])
def test_killed_processes_and_another_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, ending: str
) -> None:
    images = write_folder(tmp_path / "images")

    def call(output: Path) -> list[str]:
        engine = ["--engine", "torch"] if job == "predict" else []
        common = ("--parts", "--batch-size", "4", "--output", str(output))
        return [job, "cifar10", str(images), *engine, *common]

    killed, whole = tmp_path / f"killed.{ending}", tmp_path / f"whole.{ending}"
    outputs(start(2, ["-c", SMALL, *call(killed)]), -signal.SIGKILL)
    parts = tmp_path / f"{killed.name}.parts"
    assert len(list(parts.glob("0*"))) == len(list(parts.glob(".0*.tmp"))) == 2
    monkeypatch.setattr("vitlab.jobs.parts.parts.IMAGES", 10)
    for output in (killed, whole):
        assert run(call(output)) == 0
        assert run([job, "--merge", str(output)]) == 0
    assert killed.read_bytes() == whole.read_bytes()
    both = (killed, whole)
    names = [{path.name for path in Path(f"{output}.parts").iterdir()} for output in both]
    assert names[0] == names[1]


IMAGES = 20_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Very small image files, and one that is none."""
    folder = tmp_path_factory.mktemp("many")
    draw = np.random.default_rng(0)
    for number in range(IMAGES - 1):
        file = BytesIO()
        pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        (folder / f"{number:05}.png").write_bytes(file.getvalue())
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def command(way: str) -> list[str]:
    """Beginning of a command: one process, several of torchrun, or a Ray cluster."""
    if not way.isdecimal() or way == "1":
        return [sys.executable, "-m", "vitlab"]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", way, "-m", "vitlab"),
    ]


def begin(call: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        call,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_after(parts: Path, count: int, process: "subprocess.Popen[bytes]") -> None:
    """Kill a command and its processes when this many parts are there."""
    end = time.monotonic() + 600
    while len(list(parts.glob("0*"))) < count:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_images_in_every_way(many: Path, tmp_path: Path) -> None:
    ways = ["1", "2", "4", *(["ray"] if find_spec("ray") else [])]
    merged = {}
    for way in ways:
        output = tmp_path / f"{way}.jsonl"
        call = [*command(way), "predict", "cifar10", str(many), "--output", str(output)]
        call += ["--ray", "local"] if way == "ray" else ["--parts"]
        parts = tmp_path / f"{output.name}.parts"
        for count in (3, 9):
            kill_after(parts, count, begin(call))
            assert len(list(parts.glob("0*"))) < IMAGES / 1024
        assert begin(call).wait(1800) in (0, 3)
        outputs(start(1, ["-m", "vitlab", "predict", "--merge", str(output)]), 3)
        merged[way] = output.read_bytes()
    assert merged["1"].count(b"\n") == IMAGES
    assert [way for way in ways if merged[way] != merged["1"]] == []
