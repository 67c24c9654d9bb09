"""Resuming equals never stopping, bit for bit, however the run was stopped."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitlab.errors import ConfigError, FileError
from vitlab.tasks import train as train_task
from vitlab.tasks.train import train
from vitlab.train.loop import fit

SOURCE = Path(__file__).resolve().parents[2] / "src"
CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "changes": {"dropout": 0.1, "drop_path": 0.1},
    "batch_size": 32,
    "budget": 24.0,
    "budget_in": "steps",
    "ema": 0.9,
    "evaluations": 3,
    "checkpoint_every": 5,
    "augment.mixup": 0.5,
    "augment.flip": "random",
    "optimizer.name": "muon",
}


def metrics_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def weights_of(run: Path) -> bytes:
    """The numbers of the bundle, without the header, which names the folder."""
    content = (run / "bundle" / "model.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


class PullsThePlug:
    """A loader that ends the run before one step."""

    def __init__(self, loader: Any, step: int) -> None:
        self.loader, self.step, self.broken = loader, step, loader.broken

    @property
    def steps_per_epoch(self) -> float:
        return float(self.loader.steps_per_epoch)

    def batch(self, step: int) -> Any:
        if step == self.step:
            raise KeyboardInterrupt
        return self.loader.batch(step)

    def close(self) -> None:
        self.loader.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    return train(
        data="sample", out=tmp_path_factory.mktemp("runs") / "whole", changes=CHANGES
    ).folder


def test_a_run_that_was_broken_off_ends_where_the_other_does(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "part"
    for plug in (7, 5, 13):
        monkeypatch.setattr(
            train_task,
            "fit",
            lambda config, state, loader, plug=plug, **rest: fit(
                config, state, PullsThePlug(loader, plug), **rest
            ),
        )
        new = not part.exists()
        with pytest.raises(KeyboardInterrupt):
            train(
                data="sample" if new else None,
                out=part,
                changes=CHANGES if new else None,
                resume=not new,
            )
    monkeypatch.setattr(train_task, "fit", fit)
    train(out=part, resume=True)
    assert metrics_of(part) == metrics_of(whole)
    assert weights_of(part) == weights_of(whole)


def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, fsync = tmp_path / "part", os.fsync

    def full(descriptor: int) -> None:
        if list((part / "checkpoints").glob("step-00000005*")):
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device"):
        train(data="sample", out=part, changes=CHANGES)
    names = sorted(path.name for path in (part / "checkpoints").iterdir())
    assert names == ["step-00000005.safetensors"]
    monkeypatch.setattr(os, "fsync", fsync)
    train(out=part, resume=True)
    assert metrics_of(part) == metrics_of(whole)
    assert weights_of(part) == weights_of(whole)


def test_a_run_is_not_begun_over_another(whole: Path) -> None:
    with pytest.raises(ConfigError, match="continue it with --resume"):
        train(data="sample", out=whole, changes=CHANGES)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to resume"):
        train(out=tmp_path / "nothing", resume=True)


def start(out: Path, changes: dict[str, Any] | None, data: str) -> subprocess.Popen[str]:
    """The command line, in a process of its own."""
    words = ["train", "--out", str(out)]
    if changes is None:
        words.append("--resume")
    else:
        words += ["default", "--data", data]
    for key, value in (changes or {}).items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{key}={text}"]
    code = "from vitlab.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def make_folder(folder: Path) -> str:
    """Two classes of small JPEGs, some of them broken."""
    pixels = np.random.default_rng(0)
    for label in ("left", "right"):
        (folder / label).mkdir(parents=True)
        for number in range(40):
            image = pixels.integers(0, 255, (40, 36, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / label / f"{number}.jpg")
        (folder / label / "broken.jpg").write_bytes(b"not an image")
    return str(folder)


def kill_and_resume(out: Path, changes: dict[str, Any], data: str, kills: int) -> None:
    """Kill the run at random moments, then let it end."""
    moments = random.Random(0)
    for number in range(kills):
        process = start(out, changes if number == 0 else None, data)
        begin = time.monotonic()
        while not list(out.glob("checkpoints/*")) and process.poll() is None:
            assert time.monotonic() - begin < 120
            time.sleep(0.02)
        time.sleep(moments.uniform(0.0, 1.5))
        process.kill()
        process.wait()
    process = start(out, None, data)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_killed_five_times(tmp_path: Path, kind: str) -> None:
    data = "sample" if kind == "memory" else make_folder(tmp_path / "images")
    changes = CHANGES | {"budget": 200.0, "checkpoint_every": 3, "batch_size": 16}
    if kind == "files":
        changes |= {"workers": 2, "changes": {"image_size": 32, "dropout": 0.1}}
    process = start(tmp_path / "whole", changes, data)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    kill_and_resume(tmp_path / "part", changes, data, kills=5)
    assert metrics_of(tmp_path / "part") == metrics_of(tmp_path / "whole")
    assert weights_of(tmp_path / "part") == weights_of(tmp_path / "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "run"
    process = start(out, CHANGES | {"budget": 5000.0}, "sample")
    begin = time.monotonic()
    while not list(out.glob("checkpoints/step-*")):
        assert process.poll() is None
        assert time.monotonic() - begin < 120
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert f"vitlab train --resume --out {out}" in errors
