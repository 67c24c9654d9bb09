"""`vitlab data check`, and how training refuses what the check would have told."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from rich.console import Console

from command import Command
from data.messy_folder import EXPECTED, make_messy, photograph
from data.picture_files import encoded
from vitlab.cli import progress as module
from vitlab.cli.progress import file_progress


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_messy(tmp_path_factory.mktemp("data") / "pets")


def fill(root: Path, *names: str) -> None:
    """A different picture under each name."""
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(photograph(seed, 40), "PNG"))


def clean(root: Path) -> Path:
    fill(root, *(f"{label}/{i}.png" for label in ("cat", "dog") for i in range(10)))
    return root


def test_help_names_every_option(command: Command) -> None:
    outcome = command("data", "check", "--help")
    assert outcome.code == 0
    for option in ("--json", "--contact-sheet", "--strict"):
        assert option in outcome.out


def test_findings_are_told_and_are_no_error(command: Command, messy: Path) -> None:
    outcome = command("data", "check", messy)
    assert (outcome.code, outcome.err) == (0, "")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == f"{messy}: 58 readable images in 7 classes"
    assert "cat 22 4" in lines
    assert "all 50 8" in lines
    assert "width 16 104 200" in lines
    assert (
        "3 images of val also in train (2 bit for bit): "
        "the accuracy on val will look better than it is"
    ) in lines
    assert "train/cat/00.jpg = val/cat/same 1.jpg (bit for bit)" in lines
    assert "… and 1 more" in lines
    assert lines.index("Handled when read:") > lines.index(
        "1 class without a readable image: training on them is impossible"
    )
    assert "Nothing found that harms training." not in lines


def test_for_programs_every_case_is_listed(command: Command, messy: Path) -> None:
    found = json.loads(command("data", "check", messy, "--json").out)
    assert {each["name"]: each["count"] for each in found["findings"]} == EXPECTED
    assert found["serious"] is True
    assert found["counts"]["cat"] == {"train": 22, "val": 4}
    assert found["width"] == {"least": 16, "median": 104, "most": 200}
    unreadable = next(each for each in found["findings"] if each["name"] == "unreadable")
    assert len(unreadable["items"]) == 3
    assert unreadable["items"][0]["paths"] == ["train/owl/empty.jpg"]


def test_strict_fails_where_training_would_suffer(
    command: Command, messy: Path, tmp_path: Path
) -> None:
    assert command("data", "check", messy, "--strict").code == 1
    outcome = command("data", "check", clean(tmp_path), "--strict")
    assert outcome.code == 0
    assert outcome.out.endswith("Nothing found that harms training.\n")


def test_the_sheet_is_written_whole(command: Command, messy: Path, tmp_path: Path) -> None:
    outcome = command("data", "check", messy, "--contact-sheet", tmp_path / "a.png")
    assert outcome.out.splitlines()[-1] == f"contact sheet: {tmp_path / 'a.png'}"
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.format == "PNG"


def test_many_classes_are_cut_to_the_smallest(command: Command, tmp_path: Path) -> None:
    fill(tmp_path, *(f"class {i:02}/1.png" for i in range(22)), "class 00/2.png")
    out = command("data", "check", tmp_path).out
    assert "the 20 smallest of 22 classes; --json has all" in out
    assert "class 00 " not in out.partition("Harms training")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder; valid"),
        (["file"], "file: is not a folder; valid"),
        (["empty"], "empty is empty; valid: one folder of images for each class"),
        (["data", "--contact-sheet", "a.jpg"], "a.jpg: a contact sheet is a PNG"),
        (["data", "--contact-sheet", "no/a.png"], "no/a.png: there is no folder"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    command: Command,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    clean(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    assert message in command("data", "check", *arguments).mistake
    assert sorted(tmp_path.rglob("*")) == before


def no_classes(root: Path) -> None:
    fill(root, "1.png", "2.png")


def other_classes(root: Path) -> None:
    fill(root, "train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/hamster/4.png")


def empty_test_class(root: Path) -> None:
    fill(root, "train/cat/1.png", "train/dog/2.png", "val/cat/3.png")
    (root / "val" / "dog").mkdir()


def only_documents(root: Path) -> None:
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        (root / label / "1.pdf").write_bytes(b"%PDF-1.7")


def a_document(root: Path) -> None:
    root.write_bytes(b"%PDF-1.7")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (no_classes, "holds files but no folders; valid: one folder of images for each class"),
        (other_classes, "val holds the class 'hamster', which is not trained; valid: cat, dog"),
        (empty_test_class, "dog holds no image files; valid endings"),
        (only_documents, "cat holds no image files (files in formats that are not read: 1 PDF;"),
        (a_document, "is not a folder"),
    ],
)
def test_training_refuses_in_one_line_and_writes_nothing(
    command: Command, make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "data")
    outcome = command("train", "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert message in outcome.mistake
    assert not (tmp_path / "run").exists()


def test_a_bar_counts_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(module, "EscapingConsole", lambda file: console)
    with file_progress("files", stream) as watch:
        watch(0, 4)
        watch(3, 4)
    assert "3/4" in stream.getvalue()


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 12.0, 15.0, 30.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    stream = io.StringIO()
    with file_progress("files", stream) as watch:
        for done in (100, 200, 300, 1000):
            watch(done, 1000)
    assert stream.getvalue() == "files: 200 of 1,000, 0.8 min left\n"
