"""Runs on the same images in folders, shards, tables and datasets; killed, resumed, in parallel."""

import json
import random
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from data.shard_files import CLASSES, rows_of, write_folder, write_parquet
from parallel_runs import assert_near, assert_same_state, trained
from runs import CHANGES, metrics_of, same, start, train_until
from vitlab.data.shards.pack import pack
from vitlab.jobs.train import train

SETTINGS = CHANGES | {"budget": 6.0, "checkpoint_every": 2, "batch_size": 8, "evaluations": 2}
WINDOWED = SETTINGS | {"shard_window": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and its shards."""
    root = tmp_path_factory.mktemp("data")
    pack(write_folder(root / "folder"), root / "shards", images=9)
    return root


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_every_format_gives_the_losses_of_the_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(root / "folder", tmp_path / "tables")
    formats = [str(root / "folder"), str(root / "shards"), str(tmp_path / "tables")]
    if find_spec("datasets"):
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
        kinds = datasets.Features(
            image=datasets.Image(), label=datasets.ClassLabel(names=sorted(CLASSES))
        )
        rows = datasets.Dataset.from_list(rows_of(root / "folder")[::-1], features=kinds)
        rows.save_to_disk(tmp_path / "stored")
        formats.append(f"hf:{tmp_path / 'stored'}")
    runs = [
        train(data=data, out=tmp_path / str(number), changes=SETTINGS).folder
        for number, data in enumerate(formats)
    ]
    assert all(same(run, runs[0]) for run in runs)


def test_a_run_on_shards_that_is_stopped_twice_ends_as_if_it_were_not(
    root: Path, tmp_path: Path
) -> None:
    shards = str(root / "shards")
    whole = train(data=shards, out=tmp_path / "whole", changes=WINDOWED).folder
    part = tmp_path / "part"
    train_until(3, data=shards, out=part, changes=WINDOWED)
    train_until(5, out=part, resume=True)
    train(out=part, resume=True)
    assert same(part, whole)
    other = train(data=shards, out=tmp_path / "other", changes=SETTINGS).folder
    assert metrics_of(other) != metrics_of(whole)  # the window is used


def last_step(run: Path) -> int:
    """Last step in the log of a run, which may end within a line."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_ten_times_on_shards(root: Path, tmp_path: Path) -> None:
    changes = WINDOWED | {"budget": 220.0, "checkpoint_every": 3, "workers": 2}
    shards, part, moments = str(root / "shards"), tmp_path / "part", random.Random(0)
    whole = train(data=shards, out=tmp_path / "whole", changes=changes).folder
    for kill in range(10):
        process = start(part, None if kill else changes, shards)
        target, end = 20 * kill + moments.randint(6, 16), time.monotonic() + 300
        while last_step(part) < target:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert not (part / "bundle").exists()
    process = start(part, None, shards)
    process.communicate(timeout=900)
    assert process.returncode == 0
    assert same(part, whole)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_processes_together_train_on_shards_as_one_does(root: Path, tmp_path: Path) -> None:
    data = {"data": str(root / "shards"), "steps": 12, "judge_all": "false", "workers": 1}
    windowed = data | {"shard_window": 2, "shards": 4, "batch_size": 12}
    runs = {size: trained(tmp_path / str(size), size, **windowed) for size in (1, 2, 4)}
    for size in (2, 4):
        assert_near(runs[1], runs[size], 1e-4)
        assert_same_state(runs[1], runs[size], 12)
    plain = {n: trained(tmp_path / f"plain {n}", n, **data, shard_window=2) for n in (1, 4)}
    assert_near(plain[1], plain[4], 1e-4)
