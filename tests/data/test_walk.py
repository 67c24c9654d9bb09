"""Images of a folder, in an order that holds, without a list of them all."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitlab.images import find as walk
from vitlab.images.find import in_blocks, matching, pointed_at, walk_images


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in walk_images(str(folder))]


def test_files_come_before_folders_and_both_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "b.jpg", "a.PNG", "z/1.webp", "c/2.jpeg", "c/d/3.gif", "paper.pdf")
    touch(tmp_path, ".hidden.png", "__pycache__/4.png", "notes.txt", "no_ending", ".git/5.png")
    assert found(tmp_path) == ["a.PNG", "b.jpg", "paper.pdf", "c/2.jpeg", "c/d/3.gif", "z/1.webp"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png")
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "dead.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    assert found(tmp_path) == ["dead.png", "self.png", "a/1.png"]


def test_a_folder_that_cannot_be_opened_is_among_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a/1.png", "b/2.png", "c/3.png")
    opened = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if path.endswith("b"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert found(tmp_path) == ["a/1.png", "b", "c/3.png"]


def test_a_block_is_sorted_and_no_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "BLOCK", 3)
    names = iter(["c", "b", "a", "z", "y", "x"])
    stream = in_blocks(names)
    assert [next(stream) for _ in range(3)] == ["a", "b", "c"]
    assert list(names) == ["z", "y", "x"]


def test_what_exists_is_no_pattern(tmp_path: Path) -> None:
    touch(tmp_path, "[a].png", "b/1.png")
    (tmp_path / "dead.png").symlink_to(tmp_path / "gone.png")
    names = {"[a].png": "file", "b": "folder", "dead.png": "file", "c.png": "nothing"}
    names |= {"[b].png": "pattern", "*": "pattern", "": "folder"}
    assert {name: pointed_at(str(tmp_path / name)) for name in names} == names


def test_a_pattern_fits_all_but_folders(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png/1.png", "c/2.png", "c/.3.png", "c/4.txt")
    (tmp_path / "dead.png").symlink_to(tmp_path / "gone.png")
    fits = sorted(os.path.relpath(path, tmp_path) for path in matching(f"{tmp_path}/**/*.png"))
    assert fits == ["a.png", "b.png/1.png", "c/2.png", "dead.png"]
