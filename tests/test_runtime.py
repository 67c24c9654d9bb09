"""What the process is told about the machine."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab import runtime
from vitlab.runtime import attention_form, keep_freed_memory, plain_products

# As they were before a fixture took their place for every test.
ABILITIES = {name: getattr(runtime, name) for name in ("wide_vectors", "multiplies_bfloat16")}

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt(3) is glibc's")

# Frees and takes 64 MB again and again, and counts the pages that the kernel had to bring.
CHURN = """
import resource, sys
import torch
from vitlab.runtime import keep_freed_memory
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
    assert ABILITIES["wide_vectors"]() is wide
    assert ABILITIES["multiplies_bfloat16"]() is bfloat16


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "PROCESSOR", str(tmp_path / "missing"))
    assert not any(able() for able in ABILITIES.values())
