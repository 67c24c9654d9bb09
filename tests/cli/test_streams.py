"""Standard streams that are closed or full, and too few file descriptors: one line, code 2."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command import Command
from runs import MAIN, make_folder

SOURCE = Path(__file__).resolve().parents[2] / "src"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


def shell(
    arguments: str, tail: str = "", *, before: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run `vitlab ARGUMENTS TAIL` in a shell, after the command `before`."""
    line = f"{shlex.join([sys.executable, '-c', MAIN])} {arguments} {tail}"
    return subprocess.run(
        ["bash", "-c", f"{before}\n{line}"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "tail", "message"),
    [
        ("weights list", ">&-", "standard output is closed; valid: a terminal, a pipe, a file"),
        ("weights list", "> /dev/full", "standard output: No space left on device"),
        ("weights list --json", "> /dev/full", "standard output: No space left on device"),
        ("--help", "> /dev/full", "No space left on device"),
        ("weights list", "1< /dev/null", "standard output: Bad file descriptor"),
        ("predict cifar10 -", "<&-", "standard input is empty"),
        ("summary nope", "<&-", "unknown model or file 'nope'"),
    ],
)
def test_a_stream_that_fails_is_one_line(arguments: str, tail: str, message: str) -> None:
    done = shell(arguments, tail)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "tail", "code", "printed"),
    [
        ("weights list", "2>&-", 0, True),
        ("weights list", "2> /dev/full", 0, True),
        ("summary nope", "2>&-", 2, False),
        ("summary nope", "2> /dev/full", 2, False),
        ("weights list", ">&- 2>&-", 2, False),
        ("weights list", "> /dev/full 2>&1", 2, False),
        ("weights list", "<&-", 0, True),
        ("weights list", "| true; exit ${PIPESTATUS[0]}", 1, False),
    ],
)
def test_other_streams_do_not_change_the_exit_code(
    arguments: str, tail: str, code: int, printed: bool
) -> None:
    done = shell(arguments, tail)
    assert (done.returncode, done.stderr, bool(done.stdout)) == (code, "", printed)


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    assert shell(f"info cifar10 --markdown {card}", "<&- 2>&-").returncode == 0
    assert card.read_text().startswith("---\n")
    assert "model card:" not in card.read_text()


def test_too_few_file_descriptors_for_the_workers(tmp_path: Path) -> None:
    data, out = make_folder(tmp_path / "data"), tmp_path / "run"
    settings = "--steps 2 --set model=vit_test --set batch_size=48 --set workers=30"
    words = f"train default --data {data} --out {out} {settings}"
    done = shell(words, before="ulimit -n 32")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: too many open files: the limit is 32 (ulimit -n); raise it, or use fewer workers"
    )
    assert "Traceback" not in done.stderr


def test_too_many_open_files_are_no_fault_of_an_image(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.jpg")

    monkeypatch.setattr("PIL.Image.open", fail)
    outcome = command("predict", "cifar10", make_folder(tmp_path / "data"), "--engine", "torch")
    assert outcome.mistake.startswith("too many open files: the limit is ")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = shell(f"info cifar10 --markdown {tmp_path / 'card.md'}", "")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
