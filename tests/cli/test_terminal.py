"""Names from files and downloads cannot control the terminal or fake a line."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command import Command
from runs import MAIN
from vitlab.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such names on Windows")
SOURCE = Path(__file__).resolve().parents[2] / "src"
CONTROL = "\x1b[31mX\x1b]0;pwned\x07\x9b1m"
LINE = "a\nerror: fake\r"
MARKUP = "[red]x[bold] <img src=x onerror=alert(1)> \u202eevil\u200b ä录🙂"
CLASSES = (CONTROL, LINE, MARKUP)
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def check(text: str) -> None:
    """Nothing acts on the terminal, and no name begins a line of its own."""
    assert not FORBIDDEN.findall(text.replace("\t", " ")), ascii(text)
    assert "\nerror: fake" not in text


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes and files with such names, a broken file, and one whose name is no text."""
    folder = tmp_path_factory.mktemp("data") / "images"
    pixels = np.random.default_rng(0)
    for label in CLASSES:
        (folder / label).mkdir(parents=True)
        for number in range(10):
            image = Image.fromarray(pixels.integers(0, 255, (20, 20, 3), dtype=np.uint8))
            image.save(folder / label / f"{number}\x1b[32m\nerror: fake.png")
        (folder / label / "broken\x1b[1m\nerror: fake.png").write_bytes(b"no image")
    image.save(folder / CONTROL / "bytes.png")
    (folder / CONTROL / "bytes.png").rename(folder / CONTROL / "bytes\udcff.png")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a folder with such a name, whose bundle has such labels."""
    out = tmp_path_factory.mktemp("runs") / "run\x1b[7m\nerror: fake"
    words = ("train", "default", "--data", str(data), "--out", str(out), "--steps", "2", *SMALL)
    printed, logged = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(logged):
        assert main.run(words) == 0
    check(printed.getvalue())
    check(logged.getvalue())
    return out


SMALL = ("--set", "model=vit_test", "--set", "batch_size=8")


def vitlab(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("data check DATA", 0),
        ("info RUN", 0),
        ("info RUN --markdown", 0),
        ("info RUN --json", 0),
        ("summary RUN", 0),
        ("predict RUN DATA", 3),
        ("predict RUN DATA --json", 3),
        ("predict RUN IMAGE", 0),
        ("predict RUN BROKEN", 2),
        ("predict RUN DATA --output OUT.csv --contact-sheet OUT.png", 3),
        ("evaluate RUN --data DATA", 0),
        ("explain RUN IMAGE --output OUT.png", 0),
        ("features RUN DATA --output OUT.npz", 0),
        ("convert BROKEN OUT.npz --format google", 2),
        ("train BROKEN --out OUT", 2),
        ("no\x1b[1m\nerror: fake", 2),
        ("similar no\x1b.npz x", 2),
    ],
)
def test_printed_names_are_escaped(
    command: Command, data: Path, run: Path, tmp_path: Path, words: str, code: int
) -> None:
    known = {
        "DATA": str(data),
        "RUN": str(run),
        "IMAGE": str(data / LINE / "1\x1b[32m\nerror: fake.png"),
        "BROKEN": str(data / CONTROL / "broken\x1b[1m\nerror: fake.png"),
        "OUT": str(tmp_path / "out\x1b[1m\nerror: fake"),
    }
    pattern = re.compile("|".join(known))
    arguments = [pattern.sub(lambda found: known[found[0]], w) for w in words.split(" ")]
    outcome = command(*arguments)
    assert outcome.code == code, outcome
    check(outcome.out)
    check(outcome.err)
    assert "\\x1b" in outcome.out + outcome.err or words == "summary RUN" or "--json" in words


def test_log_messages_are_escaped(data: Path, run: Path, tmp_path: Path) -> None:
    done = vitlab("finetune", "--from", run, "--data", data, "--out", tmp_path / "a", "--steps", 1)
    assert done.returncode == 0
    check(done.stdout)
    check(done.stderr)
    assert "broken\\x1b[1m\\nerror: fake.png" in done.stderr


BETWEEN = "=== the next command ==="


def test_on_a_terminal_only_rich_moves_the_cursor(data: Path, run: Path) -> None:
    import pty

    image = data / CONTROL / "1\x1b[32m\nerror: fake.png"
    commands = [
        ["info", str(run)],
        ["predict", str(run), str(image)],
        ["evaluate", str(run), "--data", str(data)],
    ]
    lines = [f"assert run({words!r}) == 0; print({BETWEEN!r}, flush=True)" for words in commands]
    code = "\n".join(["from vitlab.cli.main import run", *lines])
    terminal, other = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "200"}
    started = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=other, stderr=other
    )
    os.close(other)
    written = b""
    while block := _read(terminal):
        written += block
    os.close(terminal)
    assert started.wait() == 0
    *texts, rest = written.decode().split(BETWEEN)
    assert (len(texts), rest.strip()) == (len(commands), "")
    for text in texts:
        check_terminal(text)


def check_terminal(text: str) -> None:
    """Control sequences are those of Rich, and names are escaped."""
    own = re.sub(r"\x1b\[(\?25[lh]|[0-9;]*[mKAG])", "", text).replace("\r", "")
    check(own)
    assert "\x1b[31mX" not in text
    assert "\\x1b[31mX\\x1b]0;pwned" in own.replace("\n", "")
    assert "\x1b[32m\\n" not in text


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux's way to say that nobody writes any more
        return b""


class Images(HTMLParser):
    """Images that a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any(name == "onerror" for name, _ in attrs):
            self.found.append(tag)


def test_names_are_text_in_pages_and_cards(
    command: Command, data: Path, run: Path, tmp_path: Path
) -> None:
    page, card = tmp_path / "page.html", tmp_path / "card.md"
    assert command("evaluate", run, "--data", data, "--output", page).code == 0
    assert command("info", run, "--markdown", card).code == 0
    parser = Images()
    parser.feed(page.read_text())
    assert not parser.found
    assert not FORBIDDEN.findall(page.read_text())
    check(card.read_text())
    assert "<img" not in card.read_text()
    assert "ä录🙂" in card.read_text()
