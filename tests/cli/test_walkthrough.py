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
    assert lines[0] == "model     vit_test (random weights: nothing has been learned)"
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
        (["--token", "3"], "'3' is not ROW,COLUMN of a patch, such as 3,4"),
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
