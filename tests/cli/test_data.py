"""`vitlab data`: what there is, and getting it."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

from command import Command
from vitlab.cli.progress import DownloadBars, DownloadLines, download_progress
from vitlab.data.datasets import Mirror, StoredFile
from vitlab.data.sources.digits import DIGITS
from vitlab.errors import DataError
from vitlab.io.download import Progress
from vitlab.registry import DATASETS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "home"


def deliver(work: Path, ready: Path, progress: Progress) -> None:
    progress.advance("toy.bin", 1, 2)
    progress.advance("toy.bin", 2, 2)
    (ready / "toy.bin").write_bytes(b"ab")


def refuse(work: Path, ready: Path, progress: Progress) -> None:
    raise DataError("is closed")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset of two bytes, which the second of two mirrors has."""
    entry = replace(
        DIGITS,
        name="toy",
        files=(StoredFile(name="toy.bin", size=2, checksum=None),),
        mirrors=(Mirror(name="one", deliver=refuse), Mirror(name="two", deliver=deliver)),
    )
    monkeypatch.setitem(DATASETS._entries, "toy", entry)


@pytest.mark.parametrize("arguments", [("list",), ("fetch",), ("check",)])
def test_help_and_json(command: Command, arguments: tuple[str, ...]) -> None:
    outcome = command("data", *arguments, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out


def test_alone_it_shows_its_help(command: Command) -> None:
    outcome = command("data")
    assert outcome.code == 0
    assert "fetch" in outcome.out


def test_list_says_where_each_lies(command: Command, home: Path) -> None:
    lines = command("data", "list").out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(DATASETS) <= set(rows)
    assert rows["sample"].endswith("part of vitlab")
    assert rows["cifar10"].endswith("vitlab data fetch cifar10")
    assert "50,000" in rows["cifar10"]
    assert "184 MB" in rows["cifar10"]
    assert not home.exists()


def test_list_for_programs(command: Command, toy: None, home: Path) -> None:
    command("data", "fetch", "toy")
    found = {entry["name"]: entry for entry in json.loads(command("data", "list", "--json").out)}
    assert found["toy"]["path"] == str(home / "toy")
    assert found["sample"]["embedded"]
    assert found["cifar100"]["path"] is None
    assert found["cifar100"]["classes"] == 100


def test_list_with_a_dataset_of_ones_own(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._entries, "mine", lambda: None)
    assert "registered by you" in command("data", "list").out


def test_fetch_tells_what_it_does(command: Command, toy: None, home: Path) -> None:
    outcome = command("data", "fetch", "toy")
    assert (outcome.code, outcome.out) == (0, f"toy is in {home / 'toy'}, from two, verified\n")
    assert outcome.err.splitlines() == [
        "toy: from one",
        "toy: one: is closed",
        "toy: from two",
        "toy.bin: 50 % of 2 bytes",
        "toy.bin: 100 % of 2 bytes",
    ]
    again = command("data", "fetch", "toy")
    assert (again.out, again.err) == (f"toy is already in {home / 'toy'}\n", "")


def test_fetch_for_programs(command: Command, toy: None, home: Path) -> None:
    found = json.loads(command("data", "fetch", "toy", "--json").out)
    assert found == {"name": "toy", "path": str(home / "toy"), "mirror": "two", "bytes": 2}
    assert json.loads(command("data", "fetch", "toy", "--json").out)["mirror"] is None


def test_what_is_embedded_needs_no_fetching(command: Command, home: Path) -> None:
    assert "part of vitlab" in command("data", "fetch", "sample").out
    assert json.loads(command("data", "fetch", "digits", "--json").out)["path"] is None
    assert not home.exists()


def test_an_unknown_name_is_one_line(command: Command) -> None:
    assert "did you mean cifar10" in command("data", "fetch", "cifar-10").mistake


def test_a_failure_names_every_mirror(
    command: Command, toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(DATASETS["toy"], mirrors=DATASETS["toy"].mirrors[:1])
    monkeypatch.setitem(DATASETS._entries, "toy", entry)
    outcome = command("data", "fetch", "toy")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "error: toy could not be fetched: one: is closed"


def test_on_a_terminal_there_is_a_bar() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with Bars(console=console) as bars:
        progress = DownloadBars(bars)
        progress.note("a [note]")
        progress.advance("file", 1, 4)
        progress.advance("file", 3, 4)
        progress.advance("other", 0, 2)
        assert [(task.description, task.completed) for task in bars.tasks] == [
            ("file", 3),
            ("other", 0),
        ]
    assert "a [note]" in stream.getvalue()


def test_elsewhere_there_are_lines() -> None:
    stream = io.StringIO()
    with download_progress(stream) as progress:
        assert isinstance(progress, DownloadLines)
        for done in range(101):
            progress.advance("file", done, 100)
    assert len(stream.getvalue().splitlines()) == 10
