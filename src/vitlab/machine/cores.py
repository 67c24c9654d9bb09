"""Tuning of this process for the machine: choices that change speed and never results.

The environment variable `VITLAB_RUNTIME=plain` switches them off.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# How much memory this process may still take.


# The control groups that Linux puts around a process: where a container says what it may use.


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
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if told.isdecimal() and int(told):
        return int(told)
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


def multiplies_bfloat16() -> bool:
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
            told = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return set()
    return set(told.split())


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
