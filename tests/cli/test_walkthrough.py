"""`vitlab walkthrough`: a page, and what is said of it."""

import json
from pathlib import Path

import pytest

from command import Command


def test_a_page_is_written_and_told(command: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ("--model", "vit_test", "--layer", 1, "--head", -1, "--token", "3, 1")
    outcome = command("walkthrough", "sample/test/5", "--output", page, *asked)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "model     vit_test (random weights)"
    assert lines[1] == "followed  patch 3,1 in head 1 of block 1"
    assert lines[3] == f"page      {page}"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(command("walkthrough", "sample/test/5", "--model", "vit_test", "--json").out)
    assert found["output"] == "walkthrough.html"
    assert (found["token"], found["tokens"], found["random_weights"]) == ([2, 2], 17, True)
    assert found["difference"] < 1e-5
    assert Path("walkthrough.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--token", "3"], "'3' is not ROW,COLUMN of a patch from 0, such as 3,5"),
        (["--token", "a,b"], "'a,b' is not ROW,COLUMN of a patch"),
        (["--output", "page.txt"], "page.txt: the page is HTML"),
        (["--head", "9"], "head 9 does not exist; valid: -2 to 1"),
    ],
)
def test_mistakes_are_one_line(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command("walkthrough", "sample/test/5", "--model", "vit_test", *arguments)
    assert message in outcome.mistake
    assert list(tmp_path.iterdir()) == []


def test_other_languages_are_refused(command: Command, tmp_path: Path) -> None:
    for words in (
        ["walkthrough", "sample/test/5", "--model", "vit_test", "--output", tmp_path / "x.html"],
        ["train", "--data", "digits", "--steps", 1, "--out", tmp_path / "run"],
        ["evaluate", "cifar10", "--data", "sample", "--output", tmp_path / "x.html"],
    ):
        outcome = command(*words, "--language", "fr")
        assert "unknown language 'fr'; valid: en, zh" in outcome.mistake
    assert list(tmp_path.iterdir()) == []


def test_pages_in_chinese(command: Command, tmp_path: Path) -> None:
    page = tmp_path / "walk.html"
    chosen = ("--model", "vit_test", "--language", "zh", "--output", page)
    assert command("walkthrough", "sample/test/5", *chosen).code == 0
    assert "一幅图像逐步通过 Vision Transformer" in page.read_text(encoding="utf-8")
    words = ["train", "--data", "digits", "--steps", 2, "--set", "model=vit_test"]
    done = command(*words, "--language", "zh", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "学习过程" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
