"""Runtimes of exported models: each opens a file for a number of callers and threads."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import MissingExtra, VitlabError, WeightsError
from vitlab.machine import device as runtime
from vitlab.weights.exported import check_trusted, read_export_metadata, read_metadata, read_package

Images = NDArray[np.uint8] | NDArray[np.float32]
Compute = Callable[[Images], NDArray[np.float32]]
"""Images [B, C, H, W] as the file takes them, to logits [B, classes]."""
INPUT, OUTPUT = "images", "logits"


@runtime_checkable
class Runtime(Protocol):
    """Interface of a runtime that computes an exported model."""

    def metadata(self) -> Mapping[str, str]:
        """Metadata of the file."""

    def open(self, *, threads: int, callers: int) -> Compute:
        """The model for `callers` concurrent calls, each with `threads` threads."""

    def start_thread(self, threads: int) -> None:
        """Called in each thread that will call, before it does."""


class OpenedOnce:
    """A runtime that loads the file once per number of threads and callers; thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._opened: dict[tuple[int, int], Compute] = {}

    @property
    def loaded(self) -> bool:
        """True if the weights are in memory."""
        return bool(self._opened)

    def open(self, *, threads: int, callers: int) -> Compute:
        """As the runtime's own."""
        with self._lock:
            if (threads, callers) not in self._opened:
                opened = self._runtime.open(threads=threads, callers=callers)
                self._opened[threads, callers] = opened
            return self._opened[threads, callers]

    def start_thread(self, threads: int) -> None:
        """As the runtime's own."""
        self._runtime.start_thread(threads)


class OnnxRuntime:
    """ONNX Runtime on the CPU."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtra("export", "the engine onnxruntime") from None
        self._path = path
        self._runtime: Any = onnxruntime

    def metadata(self) -> Mapping[str, str]:
        return read_metadata(self._path)

    def open(self, *, threads: int, callers: int) -> Compute:
        """One session, whose weights all callers share: it may run in many threads at once."""
        session = self._session(shared_pool(threads=threads, callers=callers))

        def compute(images: Images) -> NDArray[np.float32]:
            with _running(self._path):
                return _logits(session.run([OUTPUT], {INPUT: images})[0], images)

        return compute

    def start_thread(self, threads: int) -> None:
        """The number of threads is the session's."""

    def _session(self, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            return self._runtime.InferenceSession(
                str(self._path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors share no class of their own
            raise unreadable(self._path, error) from error


class OpenVino:
    """OpenVINO on the CPU, which reads ONNX."""

    def __init__(self, path: Path) -> None:
        try:
            import openvino
        except ImportError:
            raise MissingExtra("openvino", "the engine openvino") from None
        self._path = path
        self._core: Any = openvino.Core()
        # Its first array sets up what it shares with NumPy; two threads that get theirs at the same
        # moment have been seen to wait for each other for ever.
        _ = openvino.Tensor(openvino.Type.f32, openvino.Shape([1])).data

    def metadata(self) -> Mapping[str, str]:
        return read_metadata(self._path)

    def open(self, *, threads: int, callers: int) -> Compute:
        settings = {
            "INFERENCE_NUM_THREADS": threads * callers,
            "NUM_STREAMS": callers,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        try:
            compiled = self._core.compile_model(str(self._path), "CPU", settings)
        except Exception as error:
            raise unreadable(self._path, error) from error

        def compute(images: Images) -> NDArray[np.float32]:
            with _running(self._path):
                request = compiled.create_infer_request()
                # A copy: it is a view of memory that the request frees.
                return np.array(_logits(request.infer({INPUT: images})[OUTPUT], images))

        return compute

    def start_thread(self, threads: int) -> None:
        """The number of threads is the compiled model's."""


class Aoti:
    """An AOTInductor package, in torch's runtime."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def metadata(self) -> Mapping[str, str]:
        """From the archive: torch would load the machine code."""
        found = read_package(self._path)
        check_trusted(self._path)
        return found

    def open(self, *, threads: int, callers: int) -> Compute:
        import torch

        package = self._load(callers)

        def compute(images: Images) -> NDArray[np.float32]:
            with _running(self._path), torch.inference_mode():
                return _logits(package(torch.from_numpy(images)).numpy(), images)

        return compute

    def start_thread(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

    def _load(self, callers: int) -> Any:
        from vitlab.exporting.torch_export import load_package

        read_package(self._path)
        check_trusted(self._path)
        try:
            return load_package(self._path, callers=callers)
        except Exception as error:
            raise unreadable(self._path, error) from error


def shared_pool(*, threads: int, callers: int) -> int:
    """Number of threads to set in ONNX Runtime so that each caller has `threads`.

    It starts one thread less than its setting, since the calling thread computes, too. Its threads
    are shared by all callers.
    """
    return callers * (threads - 1) + 1


def run_onnx(path: Path) -> Compute:
    """The model in an ONNX file, with one thread."""
    return OnnxRuntime(path).open(threads=1, callers=1)


def unreadable(path: Path, error: Exception) -> WeightsError:
    """One line about a file that a runtime refuses."""
    return WeightsError(f"{path}: cannot be loaded ({_line(error)})")


@contextmanager
def _running(path: Path) -> Iterator[None]:
    """Errors of a runtime, which share no class, as one line about the file."""
    try:
        yield
    except (MemoryError, VitlabError):
        raise
    except Exception as error:
        raise WeightsError(f"{path}: cannot be run ({_line(error)})") from error


def _logits(found: Any, images: Images) -> NDArray[np.float32]:
    """The output of a file, which must be one row of float32 for each image."""
    shape, kind = getattr(found, "shape", None), getattr(found, "dtype", type(found).__name__)
    if kind != np.float32 or shape is None or len(shape) != 2 or shape[0] != len(images):
        raise TypeError(f"an output of {kind} {shape} for {len(images)} images")
    return cast(NDArray[np.float32], found)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


# Choice of the fastest installed runtime for an ONNX file; imports none of them.

ENGINES = ("onnxruntime", "openvino")
"""Engines for ONNX files; the first is the default."""
STREAMED = 150_000_000
"""Bytes of weights beyond which OpenVINO loses against ONNX Runtime when every core has batches of
its own: ViT-S has 88 million and is 1.18 times as fast, ViT-B 346 million and 0.77 times."""


def onnx_engine(file: Path, *, quickly: bool) -> str | None:
    """Fastest installed engine for this file; None: none is installed.

    OpenVINO where it is the faster one (docs/benchmark.md), else ONNX Runtime, which also starts
    sooner: `quickly` for a single image.
    """
    installed = installed_engines()
    if len(installed) < 2:
        return next(iter(installed), None)
    wide = runtime.wide_vectors() and runtime.tuned()
    if quickly or not wide:  # whatever the file is
        return "onnxruntime"
    facts = read_export_metadata(read_metadata(file), str(file)).facts
    eight_bits = facts.quantize == "int8"
    streamed = facts.weight_bytes > STREAMED
    return "onnxruntime" if eight_bits or streamed else "openvino"


def installed_engines() -> tuple[str, ...]:
    """Engines that can be imported."""
    return tuple(name for name in ENGINES if find_spec(name) is not None)
