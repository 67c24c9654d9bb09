"""A command that is killed while it writes: the same command again leaves its result alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Command
from runs import MAIN, make_folder
from weights.bundles import make_bundle
from weights.hub_server import Hub, standing_in

SOURCE = Path(__file__).resolve().parents[2] / "src"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows removes nothing")
KILL = "import os, signal; os.{} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
"""The process ends when it has written a file and is about to give it its name."""
STOP = "import os, signal; os.{} = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)"


def start(*arguments: object, before: str = "") -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\n{MAIN}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def kill(*arguments: object) -> None:
    """Run a command that is killed when it has written its file."""
    started = start(*arguments, before=KILL.format("replace"))
    started.communicate()
    assert started.returncode == -signal.SIGKILL


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["predict", "cifar10", "IMAGES", "--output"], "p.csv"),
        (["features", "cifar10", "IMAGES", "--output"], "f.npz"),
        (["info", "cifar10", "--markdown"], "card.md"),
    ],
)
def test_nothing_but_the_result_is_left(
    command: Command, tmp_path: Path, arguments: list[str], output: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    images = make_folder(tmp_path / "data", each=4)
    words = [*(images if word == "IMAGES" else word for word in arguments), str(out / output)]
    kill(*words)
    assert any(name.startswith(".") for name in names(out))
    mine = out / f".{output}.original"  # looks alike, but is the user's
    mine.touch()
    assert command(*words).code in (0, 3)
    assert {name for name in names(out) if name.startswith(".")} == {mine.name}
    assert output in names(out)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with standing_in(monkeypatch, tmp_path / "home") as started:
        monkeypatch.setenv("HF_ENDPOINT", started.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield started


# The hub's client hands files to httpx in a way that httpx deprecates.
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_a_killed_pull_leaves_nothing(command: Command, hub: Hub, tmp_path: Path) -> None:
    bundle, out = make_bundle(tmp_path / "run" / "bundle"), tmp_path / "out"
    out.mkdir()
    assert command("push", bundle, "hf:alice/trees").code == 0
    words = ["pull", "hf:alice/trees", "--output", out / "trees"]
    kill(*words)
    assert any(name.startswith(".trees.") for name in names(out))
    assert command(*words).code == 0
    assert names(out) == {"trees"}


def test_the_file_of_a_living_process_stays(command: Command, tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    words = ("info", "cifar10", "--markdown", card)
    stopped = start(*words, before=STOP.format("fsync"))
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
    assert len(names(tmp_path)) == 1
    assert command(*words).code == 0
    assert len(names(tmp_path)) == 2
    card.unlink()
    stopped.send_signal(signal.SIGCONT)
    assert (stopped.communicate()[1], stopped.returncode) == (b"", 0)
    assert names(tmp_path) == {"card.md"}
