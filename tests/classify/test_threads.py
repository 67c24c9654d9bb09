"""Threads that compute: none is left idle, none is left behind, and nobody takes another's."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import vitlab
from vitlab.classify.engines import session as session_engine
from vitlab.classify.engines.runtimes import OnnxRuntime, OpenedOnce, OpenVino, shared_pool
from vitlab.classify.engines.session import SessionEngine, Source
from vitlab.exporting.torch_export import write_package
from vitlab.machine.device import MOST_WORKERS, share_cores
from vitlab.weights.exported import Facts

SHAPE = (3, 2, 5)
PLAIN = vitlab.Preprocessing(size=SHAPE[1:], mean=(0.0,) * 3, std=(1.0,) * 3)
FACTS = Facts(
    weights=None,
    preprocess_inside=False,
    quantize=None,
    zero_head=False,
    batch=None,
    output_bytes=2**20,
    peak_bytes=2**20,
    weight_bytes=1,
)


class Adding:
    """A runtime that adds up pixels, as slowly as it is told."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.opened = 0

    def metadata(self) -> dict[str, str]:
        return {}

    def open(self, *, threads: int, callers: int) -> Any:
        self.opened += 1
        time.sleep(self.seconds)

        def compute(images: NDArray[np.float32]) -> NDArray[np.float32]:
            time.sleep(self.seconds)
            return images.reshape(len(images), -1).sum(axis=1, keepdims=True)

        return compute

    def start_thread(self, threads: int) -> None:
        """Nothing to set."""


def engine_of(runtime: Adding, threads: int = 2) -> SessionEngine:
    source = Source(
        runtime=OpenedOnce(runtime),
        name="x",
        facts=FACTS,
        preprocessing=PLAIN,
        task="regression",
    )
    return SessionEngine(source, threads=threads)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What several calls give that begin at the same moment."""
    barrier = threading.Barrier(len(calls))

    def begin(call: Callable[[], Any]) -> Any:
        barrier.wait(10)
        return call()

    with ThreadPoolExecutor(len(calls)) as callers:
        return list(callers.map(begin, calls))


def threads_beyond(before: list[threading.Thread], *, least: int = 0) -> int:
    """Number of threads that are new since `before`, once it is `least`: they take time to end."""
    deadline = time.monotonic() + 10
    while (new := len(set(threading.enumerate()) - set(before))) > least:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return new


SHARES = (
    {cores: (cores, 1) for cores in range(1, 9)}
    | {9: (8, 1), 10: (5, 2), 11: (5, 2), 12: (6, 2), 13: (6, 2), 14: (7, 2), 15: (5, 3)}
    | {16: (8, 2), 17: (8, 2), 20: (5, 4), 24: (8, 3), 32: (8, 4), 48: (8, 6), 64: (8, 8)}
)


@pytest.mark.parametrize(("cores", "shares"), SHARES.items())
def test_cores_are_shared_out(cores: int, shares: tuple[int, int]) -> None:
    assert share_cores(cores) == shares


@pytest.mark.parametrize("cores", range(1, 65))
def test_hardly_a_core_is_idle(cores: int) -> None:
    """One in nine at most: of 9 cores one, and of no more than 64 never more than three."""
    workers, threads = share_cores(cores)
    assert min(cores, 5) <= workers <= MOST_WORKERS
    busy = workers * threads
    assert busy <= cores
    assert cores - busy <= min(3, cores / 9)


@pytest.mark.parametrize(("cores", "told"), [(1, 1), (8, 1), (10, 6), (16, 9), (64, 57)])
def test_callers_of_a_session_have_all_of_their_threads(cores: int, told: int) -> None:
    workers, threads = share_cores(cores)
    assert shared_pool(threads=threads, callers=workers) == told
    assert workers + told - 1 == workers * threads  # each caller computes, too
    assert shared_pool(threads=cores, callers=1) == cores


def test_a_session_is_told_of_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")
    told = []

    def session(path: str, options: Any, **others: Any) -> None:
        told.append(options.intra_op_num_threads)

    monkeypatch.setattr(runtime, "InferenceSession", session)
    OnnxRuntime(Path("a.onnx")).open(threads=3, callers=5)
    assert told == [11]


def test_engines_use_all_cores() -> None:
    for cores, shares in SHARES.items():
        engine = engine_of(Adding(), threads=cores)
        assert (engine.workers, engine._each) == shares


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_an_engine_takes_its_threads_with_it(closed: bool) -> None:
    before = threading.enumerate()
    engine = engine_of(Adding(seconds=0.02))  # long enough for the second half to need a thread
    engine.predict(np.zeros((4, *SHAPE), np.float32))
    assert threads_beyond(before, least=2) == 2
    if closed:
        engine.close()
        assert threads_beyond(before, least=100) == 0
        engine.predict(np.zeros((4, *SHAPE), np.float32))  # and can be used again
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert threads_beyond(before) == 0


def test_predictors_leave_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    model = vitlab.load("cifar10", engine="onnxruntime")
    pictures = [np.full((32, 32, 3), level, np.uint8) for level in (0, 90, 180, 255)]
    before = threading.enumerate()
    for _ in range(3):
        model.predict(pictures)
        assert threads_beyond(before, least=100) == 0
    model.predict(pictures, batch_size=2)
    assert threads_beyond(before, least=100) == 0


def test_callers_at_once_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = []

    class Slow(ThreadPoolExecutor):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            pools.append(self)
            time.sleep(0.05)  # for the other caller to come meanwhile
            super().__init__(*arguments, **options)

    monkeypatch.setattr(session_engine, "ThreadPoolExecutor", Slow)
    runtime = Adding(seconds=0.05)
    engine = engine_of(runtime)
    images = np.ones((4, *SHAPE), np.float32)
    for found in at_once(*[lambda: engine.predict(images)] * 2):
        assert_allclose(found, 30)
    engine.close()
    assert len(pools) == 1
    assert runtime.opened == 1


def test_closing_disturbs_no_other_caller() -> None:
    engine = engine_of(Adding(seconds=0.001))
    images = np.ones((4, *SHAPE), np.float32)

    def use() -> None:
        for _ in range(40):
            assert_allclose(engine.predict(images), 30)
            engine.close()

    at_once(use, use, use)


def test_weights_in_memory_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(
        runtime=OpenedOnce(Adding()), name="x", facts=FACTS, preprocessing=PLAIN, task="regression"
    )
    SessionEngine(source, threads=1).predict(np.ones((1, *SHAPE), np.float32))
    monkeypatch.setattr("vitlab.machine.device.free_bytes", lambda: 1)
    SessionEngine(source, threads=1)
    with pytest.raises(vitlab.VitlabError, match="x needs 1e-09 GB of memory for weights"):
        engine_of(Adding())


def test_packages_are_compiled_for_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inductor: Any = torch._inductor
    given: dict[str, Any] = {}

    def compiled(program: Any, *, package_path: str, inductor_configs: dict[str, Any]) -> None:
        given.update(inductor_configs)

    monkeypatch.setattr(inductor, "aoti_compile_and_package", compiled)
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(5, 2),))
    write_package(program, tmp_path / "a.pt2", {"key": "value"})
    with inductor.config.patch(given):  # which knows every key, or refuses
        assert inductor.config.cpp.dynamic_threads


def test_openvino_has_met_numpy_before_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino: Any = pytest.importorskip("openvino")
    real, seen = openvino.Tensor, []

    def tensor(*arguments: object) -> Any:
        seen.append(threading.current_thread())
        return real(*arguments)

    monkeypatch.setattr(openvino, "Tensor", tensor)
    OpenVino(Path("model.onnx"))
    assert seen == [threading.main_thread()]
