"""Processes on two hosts, and the batch script of SLURM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_runs import OPTIONS, assert_near, trained
from processes import ROOT, environments

SCRIPT = ROOT / "docs" / "deploy" / "slurm.sh"
ADDRESSES = ("10.213.7.1", "10.213.7.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces, connected by one cable."""
    names = (f"vitlab-a{os.getpid()}", f"vitlab-b{os.getpid()}")
    cards = (f"va{os.getpid()}", f"vb{os.getpid()}")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cards[0], "type", "veth", "peer", "name", cards[1])
        for name, card, address in zip(names, cards, ADDRESSES, strict=True):
            ip("link", "set", card, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", card)
            ip("-n", name, "link", "set", card, "name", "net0")
            for device in ("lo", "net0"):
                ip("-n", name, "link", "set", device, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        pytest.skip(f"no network namespaces: {error}")
    yield names
    for name in names:
        ip("netns", "del", name)


@pytest.mark.slow
def test_two_hosts_train_as_one_process_does(hosts: tuple[str, str], tmp_path: Path) -> None:
    alone, run = trained(tmp_path / "alone", 1), tmp_path / "run"
    settings = [f"--set={name}={value}" for name, value in OPTIONS.items()]
    words = ["-m", "vitlab", "train", "--data", "digits", "--steps", "4", "--out", str(run)]
    launch = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    place = ["--master-addr", ADDRESSES[0], "--master-port", "29517"]
    environment = {k: v for k, v in environments(1)[0].items() if k not in ("RANK", "WORLD_SIZE")}
    started = [
        subprocess.Popen(
            [*("ip", "netns", "exec", host, sys.executable), *launch]
            + [f"--node-rank={number}", *place, *words, *settings],
            env={**environment, "GLOO_SOCKET_IFNAME": "net0", "TP_SOCKET_IFNAME": "net0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, host in enumerate(hosts)
    ]
    printed = [process.communicate(timeout=280)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    assert_near(alone, run, 1e-4)


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "seconds", "restarts", "requeued"),
    [(0, 90, 0, 0), (1, 90, 0, 1), (1, 0, 0, 0), (143, 90, 20, 0)],
)
def test_the_script_for_slurm_queues_a_stopped_run_again(
    code: int, seconds: int, restarts: int, requeued: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    stub(tmp_path, "srun", f'printf "%s\\n" "$@" > {log}; exit {code}')
    stub(tmp_path, "scontrol", f'[ $1 = show ] && echo "n1\nn2" || echo "$@" >> {log}.requeue')
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "77",
        "SLURM_RESTART_COUNT": str(restarts),
        "SECONDS": str(seconds),  # bash counts on from there
    }
    words = ["train", "--data", "two words", "--out", "/shared/a"]
    done = subprocess.run(["bash", SCRIPT, *words], env=environment, check=False)
    assert done.returncode == code
    called = log.read_text().splitlines()
    assert called[0] == "torchrun"
    assert called[-len(words) - 2 :] == ["-m", "vitlab", *words]
    assert called[called.index("--rdzv-endpoint") + 1] == "n1:29500"
    queued = Path(f"{log}.requeue")
    assert (queued.read_text() if queued.exists() else "") == "requeue 77\n" * requeued


def test_the_job_for_kubernetes_calls_what_exists() -> None:
    text = (ROOT / "docs" / "deploy" / "trainjob.yaml").read_text()
    lists = [json.loads(line.partition(":")[2]) for line in text.splitlines() if ": [" in line]
    assert lists[0] == ["torchrun", "-m", "vitlab", "train"]
    assert {"--data", "--out", "--set"} <= set(lists[1])
