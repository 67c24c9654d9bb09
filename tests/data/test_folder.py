"""Folders of images: how their classes and splits are found, and what is refused in one line."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.data.datasets import open_data
from vitlab.data.images import FileSet
from vitlab.data.sources.folder import class_folders, image_files, open_unlabelled, read_classes
from vitlab.errors import DataError
from vitlab.images.find import walk_images


def fill(root: Path, *names: str) -> Path:
    """Different noise under each of these names."""
    for i, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i).integers(256, size=(11, 13, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path, "PNG")
    return root


def listed(data: object, root: Path) -> list[tuple[str, int]]:
    assert isinstance(data, FileSet)
    return [
        (path.relative_to(root).as_posix(), label)
        for path, label in zip(data.paths, data.labels.tolist(), strict=True)
    ]


def test_train_and_test_folders(tmp_path: Path) -> None:
    fill(tmp_path, "train/b/2.png", "train/b/1.JPG", "train/a/x/9.webp", "train/a/1.png")
    fill(tmp_path, "test/b/5.png", "val/a/6.png", "other/c/7.png")
    source = open_data(str(tmp_path))
    assert source.labels == ("a", "b")
    assert (source.channels, source.image_size) == (3, None)
    assert listed(source.open_train(), tmp_path) == [
        ("train/a/1.png", 0),
        ("train/a/x/9.webp", 0),
        ("train/b/1.JPG", 1),
        ("train/b/2.png", 1),
    ]
    assert source.open_test is not None
    assert listed(source.open_test(), tmp_path) == [("test/b/5.png", 1)]


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_names_of_the_test_split(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/1.png", f"{name}/a/1.png", f"{name}/b/1.png")
    source = open_data(tmp_path)
    assert source.open_test is not None
    assert len(source.open_test()) == 2


def test_without_a_test_split_there_is_none(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/1.png")
    assert open_data(tmp_path).open_test is None


def test_class_folders_are_split_by_us(tmp_path: Path) -> None:
    names = [f"{label}/{i}.png" for label in ("cat", "dog") for i in range(10)]
    source = open_data(fill(tmp_path, *names))
    assert source.open_test is not None
    train, test = source.open_train(), source.open_test()
    assert (len(train), len(test)) == (16, 4)
    assert test.labels.bincount().tolist() == [2, 2]
    together = listed(train, tmp_path) + listed(test, tmp_path)
    assert sorted(name for name, _ in together) == sorted(names)
    again = open_data(tmp_path)
    assert listed(again.open_train(), tmp_path) == listed(train, tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    fill(tmp_path, "train/1.png", "plane/2.png", "ship/3.png")
    assert open_data(tmp_path).labels == ("plane", "ship", "train")


def test_the_name_is_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "pets", "a/1.png", "b/2.png")
    monkeypatch.chdir(tmp_path / "pets")
    assert open_data("./").name == "pets"


def test_hidden_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "a/.2.png", "a/__MACOSX/3.png", ".git/4.png", "b/5.png")
    (tmp_path / "a" / "notes.txt").write_text("x")
    (tmp_path / "labels.csv").write_text("x")
    found = read_classes(class_folders(tmp_path))
    assert listed(found, tmp_path) == [("a/1.png", 0), ("b/5.png", 1)]


def make_empty(root: Path) -> None:
    root.mkdir(exist_ok=True)


def make_loose(root: Path) -> None:
    fill(root, "1.png", "2.png")


def make_one(root: Path) -> None:
    fill(root, "cats/1.png", "cats/2.png")


def make_case(root: Path) -> None:
    fill(root, "Cat/1.png", "cat/2.png", "dog/3.png")


def make_accents(root: Path) -> None:
    fill(root, "caf\u00e9/1.png", "cafe\u0301/2.png")


def make_class_without_images(root: Path) -> None:
    fill(root, "train/a/1.png", "train/b/1.txt")


def make_unknown_test_class(root: Path) -> None:
    fill(root, "train/cat/1.png", "train/dog/1.png", "test/Cat/1.png")


def make_test_class_without_images(root: Path) -> None:
    fill(root, "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.pdf")


def make_empty_train(root: Path) -> None:
    (root / "train").mkdir()
    fill(root, "test/a/1.png")


def make_file(root: Path) -> None:
    root.rmdir()
    root.write_text("x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_empty, "is empty; valid: one folder of images for each class"),
        (make_loose, "holds files but no folders; valid: one folder of images for each class"),
        (make_one, "holds one class, 'cats'; valid: at least 2"),
        (make_case, "holds the classes 'Cat' and 'cat', which differ only in case"),
        (make_accents, "which differ only in case or accents' encoding"),
        (make_class_without_images, "b holds no image files; valid endings: .avif .bmp "),
        (make_unknown_test_class, "holds the class 'Cat', which is not trained; did you mean cat?"),
        (
            make_test_class_without_images,
            "val/b holds no image files (files in formats that are not read: 1 PDF; ",
        ),
        (make_empty_train, "train is empty"),
        (make_file, "is not a folder"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    with pytest.raises(DataError) as caught:
        open_data(root).open_train()  # the test split is not opened until the training is over
    assert message in str(caught.value)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_classes_without_test_images_are_known(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/2.png", "val/b/3.png")
    source = open_data(tmp_path)
    assert source.labels == ("a", "b")
    assert source.unjudged == f"{tmp_path / 'val'} has no images of a"
    fill(tmp_path, "val/a/4.png", *(f"train/{i}/5.png" for i in range(7)))
    told = open_data(tmp_path).unjudged
    assert told == f"{tmp_path / 'val'} has no images of 0, 1, 2, 3, 4 and 2 more"
    fill(tmp_path, *(f"val/{i}/6.png" for i in range(7)))
    assert open_data(tmp_path).unjudged is None


def test_pictures_that_are_passed_by_are_told(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/2.png")
    assert open_data(tmp_path).notes == ()
    for name in ("a/3.CR2", "a/deep/4.cr3", "b/5.pdf", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (note,) = open_data(tmp_path).notes
    found = "2 Canon raw, 1 PDF; convert them to JPEG or PNG"
    assert note == f"Files in formats that are not read: {found}"


def test_a_class_of_skipped_formats_alone_says_which(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/2.dng", "b/3.JXL", "b/4.dng")
    found = "(files in formats that are not read: 2 raw, 1 JPEG XL; convert them to JPEG or PNG)"
    with pytest.raises(DataError, match=f"b holds no image files {re.escape(found)}; valid end"):
        open_data(tmp_path).open_train()
    with pytest.raises(DataError, match=f"b holds no image files {re.escape(found)}; valid end"):
        open_unlabelled(tmp_path / "b")


def test_unlabelled_images_have_the_note_too(tmp_path: Path) -> None:
    fill(tmp_path, "1.png", "2.png", "deep/3.pdf")
    (note,) = open_unlabelled(tmp_path).notes
    assert note.startswith("Files in formats that are not read: 1 PDF; convert")


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    fill(tmp_path, "elsewhere/far.png", "data/a/1.png", "data/b/2.png")
    a = tmp_path / "data" / "a"
    (a / "up").symlink_to(tmp_path / "data" / "a", target_is_directory=True)
    (a / "far").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (a / "again").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (a / "linked.png").symlink_to(tmp_path / "elsewhere" / "far.png")
    (a / "dead.png").symlink_to(tmp_path / "nowhere.png")
    (a / "dead.txt").symlink_to(tmp_path / "nowhere.txt")
    names = sorted(os.path.relpath(path, a) for path in image_files(a))
    assert len(names) == 4
    assert {"1.png", "linked.png", "dead.png"} < set(names)
    assert len([name for name in names if name.endswith("/far.png")]) == 1


@pytest.mark.parametrize("depth", ["data", "."])
def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path, depth: str) -> None:
    fill(tmp_path, "x/9.png", "data/a/1.png", "data/a/deep/2.png", "data/b/3.png")
    for place in ("data/a/up", "data/a/deep/up", "x/up"):
        (tmp_path / place).symlink_to(tmp_path / depth, target_is_directory=True)
    assert len(list(image_files(tmp_path / "data" / "a"))) == 2
    assert len(list(walk_images(str(tmp_path / "data" / "a")))) == 2
    (tmp_path / "way").symlink_to(tmp_path / "data", target_is_directory=True)
    assert len(list(image_files(tmp_path / "way" / "a"))) == 2


def test_a_linked_class_is_a_class(tmp_path: Path) -> None:
    fill(tmp_path, "store/1.png", "data/b/2.png")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "store", target_is_directory=True)
    assert open_data(tmp_path / "data").labels == ("a", "b")


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png")
    os.mkfifo(tmp_path / "a" / "2.png")
    assert [os.path.basename(path) for path in image_files(tmp_path / "a")] == ["1.png"]


def test_broken_files_do_not_stop_the_split(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{label}/{i}.png" for label in "ab" for i in range(5)))
    (tmp_path / "a" / "x.png").write_bytes(b"broken")
    (tmp_path / "a" / "y.png").write_bytes(b"")
    (tmp_path / "b" / "x.jpg").write_bytes(b"\xff\xd8\xff broken")
    (tmp_path / "b" / "y.png").symlink_to(tmp_path / "nowhere")
    source = open_data(tmp_path)
    assert source.open_test is not None
    train, test = source.open_train(), source.open_test()
    assert len(train) + len(test) == 10
    assert isinstance(train, FileSet)
    assert train.survey is not None
    assert sorted(train.survey.broken) == ["a/x.png", "a/y.png", "b/x.jpg", "b/y.png"]


def test_many_files_are_listed_quickly(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(5_000):
            (tmp_path / label / f"{i}.png").touch()
    found = read_classes(class_folders(tmp_path))
    assert found.labels.bincount().tolist() == [5_000, 5_000]
    assert list(found.paths[:2]) == [tmp_path / "a" / "0.png", tmp_path / "a" / "1.png"]
