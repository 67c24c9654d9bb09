"""Device, precision, cores and memory of the machine, and tuning: it changes speed, not results.

The environment variable `VITLAB_RUNTIME=plain` switches the tuning off. Torch is imported only by
the functions that return its objects.
"""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.errors import InputError, VitlabError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# Free memory, and the control groups that Linux puts around a process: limits of a container.


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """A folder of limits, in version 2 or version 1 of Linux's layout."""

    folder: Path
    second: bool


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[ControlGroup]:
    """Every group around this process that may limit `memory` or `cpu`, the inner ones first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup"
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield ControlGroup(
                folder=(base / controller if controllers else base) / folder,
                second=not controllers,
            )


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that may still be allocated: the system's, or less in a container; None: unknown."""
    known = [*_system_bytes(root), *_container_bytes(root)]
    return max(min(known), 0) if known else None


def _system_bytes(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        if "SC_PHYS_PAGES" in os.sysconf_names:  # no Linux: half of what is built in
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _container_bytes(root: Path) -> Iterator[int]:
    """Free bytes within every control group around this process."""
    for group in control_groups("memory", root):
        if group.second:
            yield from _left_in(group.folder, "memory.max", "memory.current")
        else:
            yield from _left_in(group.folder, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left_in(group: Path, limit: str, used: str) -> Iterator[int]:
    try:
        allowed, taken = (group / limit).read_text(), (group / used).read_text()
        stat = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return
    if allowed.strip() == "max":
        return
    # Pages of files that were read: released as soon as memory is needed.
    cached = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    yield int(allowed) - int(taken) + cached


Use = Literal["training", "inference"]

KEEPABLE = 1 << 30
"""Bytes of one buffer up to which freed memory is kept for the next."""
# From glibc's mallopt(3).
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST_INT = 2**31 - 1

PROCESSOR = "/proc/cpuinfo"
MOST_DECODERS = 8
"""Decoding processes beside an accelerator, at most."""

_plain_products = False
PLAIN_ATTENTION: dict[Use, int] = {"training": 128, "inference": 56}
"""Tokens up to which plain products beat the fused kernel on a CPU."""


def tuned() -> bool:
    """True if the choices of this module are active, False if left to torch and the system."""
    return os.environ.get("VITLAB_RUNTIME", "tuned") != "plain"


def attention_form(device: str, tokens: int, use: Use) -> Literal["fused", "plain"]:
    """Faster way to compute attention; both agree up to rounding."""
    if _plain_products:
        return "plain"
    if device == "cpu" and tokens <= PLAIN_ATTENTION[use] and tuned():
        return "plain"
    return "fused"


def onnx_wanted() -> bool:
    """True if models may get an ONNX file by default: unless VITLAB_ONNX=0."""
    return os.environ.get("VITLAB_ONNX", "1") != "0"


def only_products() -> bool:
    """True while a graph is traced for another runtime: see `plain_products`."""
    return _plain_products


@contextmanager
def plain_products() -> Iterator[None]:
    """Compute attention and merging as plain matrix products: for graphs that run elsewhere."""
    global _plain_products
    before, _plain_products = _plain_products, True
    try:
        yield
    finally:
        _plain_products = before


def cores(root: Path = Path("/")) -> int:
    """Number of threads: OMP_NUM_THREADS, or the cores that this process may use.

    A container may use its quota of processor time in cores, rounded up.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdecimal() and int(threads):
        return int(threads)
    affinity = getattr(os, "sched_getaffinity", None)
    present = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min([present, *_quotas(root)])


def _quotas(root: Path) -> Iterator[int]:
    """Quota of processor time of each control group, in cores."""
    for group in control_groups("cpu", root):
        try:
            if group.second:
                granted, period = (group.folder / "cpu.max").read_text().split()
            else:
                granted = (group.folder / "cpu.cfs_quota_us").read_text().strip()
                period = (group.folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            continue
        if granted not in ("max", "-1"):  # no limit
            yield max(1, -(-int(granted) // int(period)))


def wide_vectors() -> bool:
    """True if this processor reports AVX-512: sixteen float32 at once."""
    return "avx512f" in _processor_flags()


def has_bfloat16_products() -> bool:
    """True if this processor reports products of bfloat16 (AVX-512 BF16, AMX).

    `VITLAB_BFLOAT16=0` disables them: for results that other machines reproduce.
    """
    if os.environ.get("VITLAB_BFLOAT16", "1") == "0":
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_processor_flags())


def _processor_flags() -> set[str]:
    """Flags of an x86 processor; empty where the system does not list them."""
    try:
        with open(PROCESSOR) as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return set()
    return set(flags.split())


def may_have_accelerator() -> bool:
    """True if the system's devices suggest an accelerator; found without importing torch."""
    devices = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return apple or any(map(os.path.exists, devices))


def keep_freed_memory() -> bool:
    """Let buffers of a step be reused by the next one; return whether the system supports it.

    glibc returns every large buffer to the kernel and gets it again, zeroed, page by page: at the
    sizes of a training step that costs more than some of the layers do.
    """
    if not tuned() or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((M_MMAP_THRESHOLD, KEEPABLE), (M_TRIM_THRESHOLD, LARGEST_INT), (M_TOP_PAD, 1 << 26))
    return all(mallopt(setting, value) == 1 for setting, value in settings)


def parts_at_once(device: str, threads: int, images: int) -> int:
    """Number of parts of a batch to compute in parallel, with one thread each.

    Measured on two cores; with more, the parts would be small and their gradients many.
    """
    return 2 if device == "cpu" and threads == 2 and images >= 16 and tuned() else 1


# Batch sizes that suit a model and the machine.

CACHE = 5 * 2**20
"""Bytes of the largest intermediate result of a batch on a CPU: small enough that the output of one
layer is still in the cache when the next one reads it."""
DEVICE_MEMORY = 256 * 2**20
"""Bytes of the largest intermediate result on an accelerator, which needs large batches."""
MOST = 256
"""Maximum batch size: more images of even the smallest model gain nothing."""
SHARE = 0.8
"""Share of the free memory that a model may fill."""


def fitting(output_bytes: int, budget: int = CACHE) -> int:
    """Images whose largest intermediate result fits the budget, given its size for one image."""
    return max(1, min(MOST, budget // output_bytes))


def check_weights(name: str, weight_bytes: int) -> None:
    """Raise for a model whose weights do not fit into memory, before the machine swaps."""
    free = free_bytes()
    if free is not None and weight_bytes > SHARE * free:
        raise NotEnoughMemory(
            f"{name} needs {_gigabytes(weight_bytes)} of memory for weights, and "
            f"{_gigabytes(free)} are free; valid: a smaller model, or more memory"
        )


def within_memory(batch_size: int, *, peak_bytes: int, workers: int) -> int:
    """Batch size reduced to the free memory if each worker computes one batch at a time."""
    free = free_bytes()
    if free is None:
        return batch_size
    return max(1, min(batch_size, int(SHARE * free) // max(1, peak_bytes * workers)))


class NotEnoughMemory(VitlabError):
    """A model that is too large for the free memory."""


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


MOST_WORKERS = 8
"""Threads that share one interpreter; beyond, each of them computes with several cores."""
FEWEST_WORKERS = 5
"""Minimum with more cores than that: a batch on many cores waits for the slowest of them."""


def decoding_processes(device: "torch.device", available: int | None = None) -> int:
    """Processes that decode images beside a training: one of four cores, as a CPU trains too."""
    available = cores() if available is None else available
    if device.type != "cpu":
        return min(available, MOST_DECODERS)
    return 0 if available == 1 else max(available // 4, 1)


def share_cores(cores: int) -> tuple[int, int]:
    """Workers, and threads of each, that leave the fewest cores idle; among equals, most workers.

    Up to `MOST_WORKERS` cores none is idle. Beyond, the numbers from 5 to 8 leave so few
    remainders that at most one core in nine is.
    """
    if cores <= MOST_WORKERS:
        return cores, 1
    numbers = range(FEWEST_WORKERS, MOST_WORKERS + 1)
    workers = max(numbers, key=lambda number: (cores - cores % number, number))
    return workers, cores // workers


# Memory that an accelerator copies from quickly.


def pinning(device: "torch.device | str") -> "Callable[[NDArray[Any]], Callable[[], None]] | None":
    """Function that page-locks memory for copies to a device; None: the device needs none."""
    import torch

    return pin_memory if torch.device(device).type == "cuda" else None


def pin_memory(memory: "NDArray[Any]") -> Callable[[], None]:
    """Page-lock memory if possible; returns the function that releases it."""
    import torch

    runtime: Any = torch.cuda.cudart()
    address = memory.ctypes.data
    if int(runtime.cudaHostRegister(address, memory.nbytes, 0)) != 0:
        return lambda: None
    return lambda: runtime.cudaHostUnregister(address)


# The device that computes, its fast precision, and its errors about memory.


def best_device() -> "torch.device":
    """The accelerator, if there is one."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found


def device_named(name: "str | torch.device") -> "torch.device":
    """Device of a name such as `cpu` or `cuda:0`; `auto` is the best one."""
    import torch

    if name == "auto":
        return best_device()
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        valid = ", ".join(dict.fromkeys(("auto", "cpu", best_device().type)))
        raise InputError(f"device {str(name)!r} cannot be used here; valid: {valid}") from error
    return found


def dtype_of(precision: str, device: "torch.device") -> "torch.dtype":
    """Data type of a forward pass; an `auto` not yet resolved by a run is resolved here."""
    if precision == "auto":
        precision = fast_precision(device)
    import torch

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return dtypes[precision]


def fast_precision(device: "torch.device") -> Literal["bfloat16", "float32"]:
    """Precision that `auto` means on a device."""
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: "torch.device") -> bool:
    """True if products of bfloat16 are native to the device, not emulated."""
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and has_bfloat16_products()


# Detection of out-of-memory errors.

MESSAGES = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
"""Messages of torch when the system or Apple's GPU is out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that the device, torch or Python is out of memory."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error) for m in MESSAGES)
