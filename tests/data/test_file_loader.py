"""Batches of files: the same with any number of processes, whatever is broken or dies."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.picture_files import CLASSES, encoded, folder_of, picture, write_broken, write_odd
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.images import FileSet
from vitlab.data.loader import Batch, FileLoader, batches_for_evaluation, open_loader
from vitlab.errors import DataError
from vitlab.images.preprocessing import HALF, Preprocessing

ROOT = Path(__file__).resolve().parents[2]
N = 23
PREPARED = Preprocessing(size=(24, 20), mean=HALF, std=HALF)
AUGMENTED = AugmentConfig(flip="random", mixup=0.8, policy="trivial")
CROPPED = replace(AUGMENTED, random_resized_crop=(0.2, 1.0))
"""For few tests: a process that crops imports torch first."""
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def files(tmp_path: Path) -> FileSet:
    return folder_of(tmp_path, N)


@pytest.fixture
def make() -> Iterator[Callable[..., FileLoader]]:
    made = []

    def maker(data: FileSet, **changes: Any) -> FileLoader:
        settings = {
            "batch_size": 5,
            "seed": 0,
            "augment": AUGMENTED,
            "preprocessing": PREPARED,
            "classes": CLASSES,
            "workers": 0,
        }
        made.append(FileLoader(data, **(settings | changes)))
        return made[-1]

    yield maker
    for loader in made:
        loader.close()


Make = Callable[..., FileLoader]


def assert_same(one: Batch, other: Batch) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def with_broken(files: FileSet, broken: dict[Path, str]) -> FileSet:
    """Good and broken files, mixed."""
    paths = [*files.paths, *broken]
    return FileSet(paths=tuple(sorted(paths)), labels=torch.arange(len(paths)) % CLASSES)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(files: FileSet, make: Make, workers: int) -> None:
    augment = CROPPED if workers == 3 else AUGMENTED
    alone, many = (make(files, workers=w, augment=augment) for w in (0, workers))
    straight = list(alone.batches(0, 7))
    assert len(straight) == 7
    for one, other in zip(straight, many.batches(0, 7), strict=True):
        assert_same(one, other)
    for step in (6, 2, 2, 0):
        assert_same(many.batch(step), straight[step])
    for one, other in zip(straight[3:6], many.batches(3, 6), strict=True):
        assert_same(one, other)


def test_every_file_once_an_epoch(files: FileSet, make: Make) -> None:
    loader = make(files, workers=1)
    stream = torch.cat([batch.index for batch in loader.batches(0, 10)])
    assert stream[:N].sort().values.tolist() == list(range(N))
    assert stream[N : 2 * N].sort().values.tolist() == list(range(N))


def test_without_a_crop_images_are_as_when_predicting(files: FileSet, make: Make) -> None:
    batch = make(files, augment=AugmentConfig()).batch(1)
    for image, target, index in zip(*batch, strict=True):
        np.testing.assert_array_equal(image.numpy(), PREPARED.apply(files.paths[index]))
        assert target == files.labels[index]


def test_crops_differ_from_epoch_to_epoch(files: FileSet, make: Make) -> None:
    augment = AugmentConfig(random_resized_crop=(0.2, 0.6))
    loader = make(files.subset(torch.tensor([4])), batch_size=3, augment=augment)
    images = loader.batch(0).images
    assert not torch.equal(images[0], images[1])
    assert not torch.equal(images[0], loader.batch(1).images[0])


def test_stopping_early_and_starting_again(files: FileSet, make: Make) -> None:
    loader = make(files, workers=2, prefetch=4)
    first = next(loader.batches(0))
    again = loader.batches(0)
    assert_same(next(again), first)
    second = next(again)
    assert_same(loader.batch(1), second)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_files_are_replaced_counted_and_listed(
    files: FileSet, make: Make, tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    broken = write_broken(tmp_path)
    data = with_broken(files, broken)
    loader = make(data, workers=workers, max_broken=0.5, augment=AugmentConfig())
    for batch in loader.batches(0, 15):
        assert batch.images.shape == (5, 3, 24, 20)
        for image, target, index in zip(*batch, strict=True):
            assert data.paths[index] not in broken
            np.testing.assert_array_equal(image.numpy(), PREPARED.apply(data.paths[index]))
            assert target == data.labels[index]
    assert set(loader.broken) == set(broken)
    for path, reason in loader.broken.items():
        assert broken[path] in reason
    assert len(caplog.records) == len(broken)


def test_a_broken_file_takes_the_next_good_one_of_its_step(
    files: FileSet, make: Make, tmp_path: Path
) -> None:
    whole = make(files, batch_size=N, augment=AugmentConfig()).batch(0)
    order = whole.index.tolist()
    for place in (3, 4, N - 1):
        files.paths[order[place]].write_bytes(b"")
    found = make(files, batch_size=N, augment=AugmentConfig()).batch(0)
    expected = [*order[:3], order[5], order[5], *order[5 : N - 1], order[0]]
    assert found.index.tolist() == expected


@pytest.mark.parametrize("augment", [CROPPED, AugmentConfig(flip="alternate")])
def test_a_process_makes_its_rows_of_the_batch(
    files: FileSet, make: Make, tmp_path: Path, augment: AugmentConfig
) -> None:
    broken = write_broken(tmp_path)
    data = with_broken(files, broken)  # nearly every second file is replaced by the next
    settings = {"batch_size": 13, "max_broken": 0.5, "augment": augment}
    whole = make(data, **settings)
    parts = [[torch.arange(0, 4)], [torch.arange(4, 7), torch.arange(7, 9)], [torch.arange(9, 13)]]
    loaders = [make(data, **settings, rows=rows) for rows in parts]
    for step in range(3):
        found = [loader.batch(step) for loader in loaders]
        assert_same(Batch(*map(torch.cat, zip(*found, strict=True))), whole.batch(step))
    known = {path: reason for loader in loaders for path, reason in loader.broken.items()}
    assert known == whole.broken
    assert any(len(loader.broken) < len(known) for loader in loaders)


def test_broken_files_do_not_depend_on_workers(files: FileSet, make: Make, tmp_path: Path) -> None:
    data = with_broken(files, write_broken(tmp_path))
    one, two = (make(data, workers=workers, max_broken=0.5) for workers in (0, 2))
    for batch, other in zip(one.batches(0, 9), two.batches(0, 9), strict=True):
        assert_same(batch, other)
        assert one.broken == two.broken


def test_too_many_broken_files_stop_with_a_message(
    files: FileSet, make: Make, tmp_path: Path
) -> None:
    data = with_broken(files, write_broken(tmp_path))
    loader = make(data, workers=1)
    with pytest.raises(DataError, match=rf"\d of {len(data)} images cannot be read, more than the"):
        list(loader.batches(0, 20))


def test_a_step_of_broken_files_alone_stops(make: Make, tmp_path: Path) -> None:
    broken = write_broken(tmp_path)
    data = FileSet(paths=tuple(broken), labels=torch.zeros(len(broken), dtype=torch.long))
    with pytest.raises(DataError, match="step 0: none of its 5 images can be read"):
        make(data, max_broken=1.0).batch(0)


def test_paths_may_be_relative_to_where_the_trainer_is(
    files: FileSet, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make(files, workers=1)
    here.batch(0)  # its process starts where the trainer is now
    monkeypatch.chdir(tmp_path)
    names = tuple(path.relative_to(tmp_path) for path in files.paths)
    relative = FileSet(paths=names, labels=files.labels)
    here.data = relative
    assert_same(here.batch(7), make(files).batch(7))
    assert here.broken == {}


def test_names_that_are_no_text_reach_the_workers(make: Make, tmp_path: Path) -> None:
    names = ["ä ö.jpg", "line\nbreak.jpg", '"quoted".jpg', os.fsdecode(b"\xff\xfe.jpg")]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(encoded(picture(number), "JPEG"))
    data = FileSet(paths=tuple(tmp_path / name for name in names), labels=torch.zeros(4).long())
    loader = make(data, workers=1, max_broken=0.0)
    assert_same(loader.batch(0), make(data).batch(0))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_evaluation_sees_every_file_once(
    files: FileSet, tmp_path: Path, workers: int, batch_size: int
) -> None:
    broken = write_broken(tmp_path)
    data = with_broken(files, broken)
    found: dict[Path, str] = {}
    batches = list(
        batches_for_evaluation(
            data,
            batch_size=batch_size,
            preprocessing=PREPARED,
            workers=workers,
            broken=found,
        )
    )
    index = torch.cat([batch.index for batch in batches])
    assert set(found) == set(broken)
    assert [data.paths[i] for i in index] == [p for p in data.paths if p not in broken]
    for batch in batches:
        for image, target, i in zip(*batch, strict=True):
            np.testing.assert_array_equal(image.numpy(), PREPARED.apply(data.paths[i]))
            assert target == data.labels[i]


def test_odd_files_are_no_broken_files(make: Make, tmp_path: Path) -> None:
    paths = write_odd(tmp_path)
    data = FileSet(paths=tuple(paths), labels=torch.zeros(len(paths)).long())
    loader = make(data, workers=1, max_broken=0.0)
    assert len(list(loader.batches(0, 6))) == 6
    assert loader.broken == {}


def test_the_loader_for_a_set(files: FileSet, make: Make) -> None:
    made = open_loader(
        files,
        batch_size=5,
        seed=0,
        augment=AUGMENTED,
        preprocessing=PREPARED,
        classes=CLASSES,
        workers=1,
    )
    assert_same(made.batch(2), make(files).batch(2))
    made.close()


def alive(parent: int) -> list[int]:
    """Processes whose parent this is."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            _, its_parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(its_parent) == parent:
            found.append(int(entry.name))
    return found


def gone(processes: list[int], seconds: float = 10.0) -> bool:
    """Whether they all end in time; a zombie has not."""
    until = time.monotonic() + seconds
    while any(Path(f"/proc/{process}").exists() for process in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def decoding() -> list[int]:
    """Our own decoding processes."""
    return [
        process
        for process in alive(os.getpid())
        if b"vitlab.data.pool" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]


@linux
def test_close_ends_all_processes(files: FileSet, make: Make) -> None:
    loader = make(files, workers=2)
    loader.batch(0)
    assert len(decoding()) >= 1
    loader.close()
    loader.close()
    assert decoding() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_closed_loader_says_so(files: FileSet, make: Make, workers: int) -> None:
    loader = make(files, workers=workers)
    loader.close()
    with pytest.raises(RuntimeError, match="have been closed"):
        loader.batch(0)


@linux
def test_processes_end_with_the_loader(files: FileSet) -> None:
    loader = FileLoader(
        files,
        batch_size=5,
        seed=0,
        augment=AUGMENTED,
        preprocessing=PREPARED,
        classes=CLASSES,
        workers=2,
    )
    batches = loader.batches(0)
    next(batches)
    assert decoding()
    del loader, batches
    assert decoding() == []


@linux
def test_evaluation_ends_its_processes_when_abandoned(files: FileSet) -> None:
    batches = batches_for_evaluation(files, batch_size=5, preprocessing=PREPARED, workers=2)
    next(batches)
    assert decoding()
    batches.close()  # type: ignore[attr-defined]
    assert decoding() == []


@linux
def test_a_killed_process_is_replaced_and_nothing_is_lost(files: FileSet, make: Make) -> None:
    loader, expected = make(files, workers=1), make(files)
    for step in range(6):
        for process in decoding() if step % 3 == 1 else ():
            os.kill(process, signal.SIGKILL)
        assert_same(loader.batch(step), expected.batch(step))
    assert loader.broken == {}


def test_a_file_that_kills_its_process_is_broken(
    files: FileSet, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = str(files.paths[3])
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}\n"
        "from vitlab.data import pool\n"
        "from vitlab.images import decode\n"
        "read = decode.Decoder.read\n"
        f"die = lambda path: os._exit(7) if path == {deadly!r} else None\n"
        "decode.Decoder.read = lambda self, path, seed: die(path) or read(self, path, seed)\n"
        "pool.serve_tasks()"
    )
    monkeypatch.setattr("vitlab.data.pool.command", lambda: [sys.executable, "-c", code])
    loader = make(files, workers=2)
    assert len(list(loader.batches(0, 5))) == 5
    assert loader.broken == {files.paths[3]: "kills the process that decodes it (exit code 7)"}


def test_processes_that_cannot_start_are_an_error_that_tells_why(
    files: FileSet, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    monkeypatch.setattr("vitlab.data.pool.command", lambda: command)
    with pytest.raises(RuntimeError, match=r"no decoding process can start .*: no such luck"):
        make(files, workers=1).batch(0)


SCRIPT = """
import signal, sys, torch
from pathlib import Path
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.images import FileSet
from vitlab.data.loader import FileLoader
from vitlab.images.preprocessing import HALF, Preprocessing

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
paths = tuple(sorted(Path(sys.argv[1]).glob("*.jpg")))
loader = FileLoader(
    FileSet(paths=paths, labels=torch.zeros(len(paths), dtype=torch.long)),
    batch_size=64,
    seed=0,
    augment=AugmentConfig(flip="random"),
    preprocessing=Preprocessing(size=(64, 64), mean=HALF, std=HALF),
    classes=1,
    workers=2,
)
for batch in loader.batches():
    print("step", flush=True)
"""


@linux
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_trainer(files: FileSet, ending: signal.Signals) -> None:
    folder = str(files.paths[0].parent)
    trainer = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert trainer.stdout is not None
    for _ in range(3):
        assert trainer.stdout.readline() == "step\n"
    processes = alive(trainer.pid)
    assert len(processes) == 2
    os.killpg(trainer.pid, ending)
    _, errors = trainer.communicate(timeout=20)
    assert trainer.returncode == -ending
    assert gone(processes)
    if ending == signal.SIGINT:
        assert errors.count("Traceback") == 1
        assert errors.strip().endswith("KeyboardInterrupt")
