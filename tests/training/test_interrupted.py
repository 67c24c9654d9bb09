"""Runs of several processes that are killed or stopped, and continue in another number of them."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel_runs import OPTIONS, assert_same_state
from processes import environments, free_port, outputs, start

STEPS = 40
TRIALS = int(os.environ.get("VITLAB_TRIALS", "20"))
SETTINGS = [
    f"--set={name}={value}"
    for name, value in {
        **OPTIONS,
        "batch_size": 44,
        "shards": 4,
        "checkpoint_every": 3,
        "evaluations": 4,
    }.items()
]


def words(folder: Path) -> list[str]:
    """Command of the run."""
    return ["-m", "vitlab", "train", "--data", "digits", "--steps", str(STEPS), *SETTINGS] + [
        *("--out", str(folder))
    ]


def steps_of(folder: Path) -> int:
    """Steps that the run has logged."""
    path = folder / "metrics.jsonl"
    return path.read_text().count('"grad_norm"') if path.exists() else 0


def wait_for_step(folder: Path, step: int, processes: list[subprocess.Popen[str]]) -> None:
    while steps_of(folder) < step:
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.002)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupts, in one process."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    outputs(start(1, words(folder)))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_and_stopped_runs_end_with_the_same_bits(reference: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    for trial in range(TRIALS):
        folder = tmp_path / str(trial)
        first, then = draw.sample((1, 2, 4), 2)
        how = draw.choice(("kill one", "stop one", "stop all"))
        processes = start(first, words(folder))
        wait_for_step(folder, draw.randrange(4, STEPS - 10), processes)
        signal_number = signal.SIGKILL if how == "kill one" else signal.SIGTERM
        chosen = processes if how == "stop all" else [draw.choice(processes)]
        for process in chosen:
            process.send_signal(signal_number)
        codes = [process.wait(600) for process in processes]
        for process in processes:
            process.communicate()
        if how != "kill one":
            assert codes == [128 + signal.SIGTERM] * first, (trial, how, codes)
        assert steps_of(folder) < STEPS, "ended before the signal"
        outputs(start(then, ["-m", "vitlab", "train", "--resume", "--out", str(folder)]))
        assert_same_state(reference, folder, STEPS)
        print(f"trial {trial}: {how} of {first}, continued in {then}: same bits")


def launched(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The run under torchrun with these options."""
    environment = {
        name: value
        for name, value in environments(1)[0].items()
        if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *words(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers_of(torchrun: subprocess.Popen[str]) -> list[int]:
    """Numbers of the processes that torchrun has started."""
    listed = subprocess.run(
        ["pgrep", "-P", str(torchrun.pid), "-f", "vitlab train"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(number) for number in listed.stdout.split()]


@pytest.mark.slow
def test_torchrun_continues_on_one_host_when_another_is_lost(
    reference: Path, tmp_path: Path
) -> None:
    folder, place = tmp_path / "run", f"127.0.0.1:{free_port()}"
    options = ("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=lost")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={place}")
    # The first holds the meeting point, as the first node of a job does.
    hosts = [launched(folder, *options, *meeting, f"--rdzv-conf=is_host={n}") for n in (1, 0)]
    wait_for_step(folder, 8, hosts)
    for number in (hosts[1].pid, *workers_of(hosts[1])):
        os.kill(number, signal.SIGKILL)
    hosts[1].communicate()
    printed = hosts[0].communicate(timeout=600)[0]
    assert hosts[0].returncode == 0, printed
    assert "continues: this command began it" in printed
    assert_same_state(reference, folder, STEPS)


@pytest.mark.slow
def test_torchrun_restarts_a_run_in_which_a_process_was_killed(
    reference: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=2")
    with launched(folder, *options) as torchrun:
        wait_for_step(folder, 8, [torchrun])
        os.kill(workers_of(torchrun)[1], signal.SIGKILL)
        printed = torchrun.communicate(timeout=280)[0]
        assert torchrun.returncode == 0, printed
    assert "continues: this command began it" in printed
    assert_same_state(reference, folder, STEPS)
