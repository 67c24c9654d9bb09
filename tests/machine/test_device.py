"""What the process is told about the machine."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab.jobs.benchmark.plan import Plan
from vitlab.machine import device as runtime
from vitlab.machine.device import attention_form, cores, keep_freed_memory, plain_products

# As they were before a fixture took their place for every test.
ABILITIES = {name: getattr(runtime, name) for name in ("wide_vectors", "has_bfloat16_products")}

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt(3) is glibc's")

# Frees and takes 64 MB again and again, and counts the pages that the kernel had to bring.
CHURN = """
import resource, sys
import torch
from vitlab.machine.device import keep_freed_memory
kept = keep_freed_memory()
for _ in range(20):  # until the heap has grown to what is needed
    torch.ones(16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16 << 20)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def churn(runtime: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", CHURN],
        env={"VITLAB_RUNTIME": runtime, "PYTHONPATH": str(Path(__file__).parents[1] / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = done.stdout.split()
    return kept == "1", int(faults)


@glibc
def test_freed_memory_serves_again() -> None:
    kept, faults = churn("tuned")
    assert kept
    switched_off, more_faults = churn("plain")
    assert not switched_off
    assert faults * 10 < more_faults


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


def test_graphs_for_elsewhere_have_plain_products() -> None:
    assert attention_form("cpu", 10_000, "inference") == "fused"
    with plain_products():
        assert attention_form("cpu", 10_000, "inference") == "plain"
        assert attention_form("cuda", 10_000, "training") == "plain"
    assert attention_form("cpu", 10_000, "inference") == "fused"


@pytest.mark.parametrize(
    ("flags", "wide", "bfloat16"),
    [
        ("fpu avx avx2", False, False),
        ("fpu avx2 avx512f", True, False),
        ("fpu avx512f avx512_bf16", True, True),
        ("fpu avx512f amx_bf16", True, True),
    ],
)
def test_the_processor_is_asked(
    flags: str, wide: bool, bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text(f"processor\t: 0\nmodel name\t: avx512f of a name\nflags\t\t: {flags}\n")
    monkeypatch.setattr(runtime, "PROCESSOR", str(told))
    assert not ABILITIES["has_bfloat16_products"]()  # as the tests have switched it off
    monkeypatch.delenv("VITLAB_BFLOAT16")
    assert ABILITIES["wide_vectors"]() is wide
    assert ABILITIES["has_bfloat16_products"]() is bfloat16


def test_the_number_of_threads_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"})
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert cores(tmp_path) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert cores(tmp_path) == 1
    assert 1 <= cores() <= (os.cpu_count() or 1)


def limited(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


SECOND, FIRST = {"proc/self/cgroup": "0::/a/b\n"}, {"proc/self/cgroup": "4:cpu,cpuacct:/c\n"}
AT = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 7),
        (SECOND, 7),
        (SECOND | {f"{AT}/a/b/cpu.max": "max 100000\n"}, 7),
        (SECOND | {f"{AT}/a/b/cpu.max": "300000 100000\n"}, 3),
        (SECOND | {f"{AT}/a/b/cpu.max": "250000 100000\n"}, 3),
        (SECOND | {f"{AT}/a/b/cpu.max": "1000 100000\n"}, 1),
        (SECOND | {f"{AT}/a/b/cpu.max": "9900000 100000\n"}, 7),
        (SECOND | {f"{AT}/a/b/cpu.max": "max 100000\n", f"{AT}/cpu.max": "80000 20000\n"}, 4),
        (
            FIRST
            | {f"{AT}/cpu/c/cpu.cfs_quota_us": "150000\n"}
            | {f"{AT}/cpu/c/cpu.cfs_period_us": "50000\n"},
            3,
        ),
        (
            FIRST
            | {f"{AT}/cpu/cpu.cfs_quota_us": "-1\n"}
            | {f"{AT}/cpu/cpu.cfs_period_us": "100000\n"},
            7,
        ),
        ({"proc/self/cgroup": "4:memory:/\n", f"{AT}/cpu/cpu.cfs_quota_us": "1\n"}, 7),
    ],
    ids=[
        *("no groups", "no file", "no limit", "three", "two and a half", "a hundredth"),
        *("more than there are", "parent", "first layout", "first without limit", "another"),
    ],
)
def test_a_container_has_as_many_cores_as_its_time_is_worth(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(tmp_path, files)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    assert cores(tmp_path) == expected


def test_a_system_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has none."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert cores(tmp_path) == 11
    assert Plan(models=("vit_test",), threads=3).cores == 3
    assert Plan(models=("vit_test",)).cores <= 11
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert Plan(models=("vit_test",)).cores == 5


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "PROCESSOR", str(tmp_path / "missing"))
    monkeypatch.delenv("VITLAB_BFLOAT16")
    assert not any(able() for able in ABILITIES.values())
