"""What an update takes, what there is, and how running out is recognised."""

from pathlib import Path

import pytest
import torch

from vitlab.machine.device import free_bytes, is_out_of_memory
from vitlab.models.cost import PeakMemory

MEBI = 2**20


def test_peak_of_what_is_alive_at_once() -> None:
    outside = torch.zeros(MEBI // 4)
    with PeakMemory() as memory:
        a = torch.zeros(MEBI // 4)
        b = a + 1  # two
        del a
        c = b.view(2, -1)  # no memory of its own
        d = c * 2  # two again
        outside.add_(1)  # not made here
        del b, c
    assert (memory.peak, memory.now) == (2 * MEBI, MEBI)
    del d
    assert memory.now == 0


def test_what_autograd_keeps_counts() -> None:
    with PeakMemory() as memory:
        x = torch.zeros(MEBI // 4, requires_grad=True)
        y = x.exp().exp().exp()
        kept = memory.now
        y.sum().backward()
    assert kept == 4 * MEBI
    assert memory.peak >= 5 * MEBI  # and at least one gradient


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9.06 GB, other"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_running_out_is_recognised(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_torch_still_says_it_this_way() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


SYSTEM = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\nSwapFree: 7 kB\n"}
GROUP = {
    "memory.max": "4000000\n",
    "memory.current": "3000000\n",
    "memory.stat": "anon 5\ninactive_file 200000\n",
}
OLD_GROUP = {
    "memory.limit_in_bytes": "4000000\n",
    "memory.usage_in_bytes": "3000000\n",
    "memory.stat": "inactive_file 100000\n",
}


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": content for name, content in files.items()}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (SYSTEM, 5000 * 1024),
        (SYSTEM | {"proc/self/cgroup": "0::/\n"} | under("sys/fs/cgroup", GROUP), 1_200_000),
        (
            SYSTEM
            | {"proc/self/cgroup": "0::/a/b\n"}
            | under("sys/fs/cgroup/a/b", GROUP | {"memory.max": "max\n"})
            | under("sys/fs/cgroup/a", GROUP),
            1_200_000,
        ),
        (
            SYSTEM
            | {"proc/self/cgroup": "5:cpu,memory:/c\n4:pids:/c\n"}
            | under("sys/fs/cgroup/memory/c", OLD_GROUP),
            1_100_000,
        ),
        (
            SYSTEM
            | {"proc/self/cgroup": "0::/\n"}
            | under("sys/fs/cgroup", GROUP | {"memory.current": "9000000\n"}),
            0,
        ),
    ],
    ids=["system", "container", "parent", "first layout", "nothing left"],
)
def test_free_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert free_bytes(write(tmp_path, files)) == expected


def test_this_machine_has_some() -> None:
    free = free_bytes()
    assert free is not None
    assert free > 50 * MEBI
