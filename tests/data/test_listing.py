"""Images by file, folder, pattern and name, with the labels that are known."""

from pathlib import Path

import pytest

from data.colours import COLOURS, write_colours
from data.picture_files import encoded, picture
from vitlab.data.images import ArraySet
from vitlab.data.listing import Listed, list_images, open_named
from vitlab.errors import DataError, UnknownName


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(0, 5, 7), "PNG"))


def listed(*specs: str) -> list[tuple[str, str]]:
    return [
        pair for part in list_images(specs) for pair in zip(part.names, part.labels, strict=True)
    ]


def test_files_keep_their_order(root: Path) -> None:
    put("b.png", "a.png", "[c].png")
    assert listed("b.png", "a.png", "[c].png") == [("b.png", ""), ("a.png", ""), ("[c].png", "")]


def test_a_folder_of_images_has_no_labels(root: Path) -> None:
    put("photos/b.png", "photos/a.png", "photos/.hidden.png", "photos/.cache/x.png")
    (root / "photos" / "notes.txt").touch()
    assert listed("photos") == [("photos/a.png", ""), ("photos/b.png", "")]


def test_folders_in_a_folder_are_classes(root: Path) -> None:
    put("photos/cat/deep/er/1.png", "photos/cat/0.png", "photos/dog/2.png", "photos/top.png")
    assert listed("photos") == [
        ("photos/cat/0.png", "cat"),
        ("photos/cat/deep/er/1.png", "cat"),
        ("photos/dog/2.png", "dog"),
        ("photos/top.png", ""),
    ]


def test_splits_are_not_classes(root: Path) -> None:
    put("photos/train/cat/0.png", "photos/val/dog/1.png")
    assert listed("photos") == [
        ("photos/train/cat/0.png", "cat"),
        ("photos/val/dog/1.png", "dog"),
    ]
    assert listed("photos/train") == [("photos/train/cat/0.png", "cat")]


def test_patterns(root: Path) -> None:
    put("photos/cat/1.png", "photos/dog/2.png", "photos/3.png")
    (root / "photos" / "4.png").mkdir()
    assert listed("photos/*.png") == [("photos/3.png", "")]
    assert [name for name, _ in listed("photos/**/*.png")] == [
        "photos/3.png",
        "photos/cat/1.png",
        "photos/dog/2.png",
    ]


def test_a_file_named_like_a_pattern_is_a_file(root: Path) -> None:
    put("a*.png", "ab.png")
    assert listed("a*.png") == [("a*.png", "")]


def test_datasets_by_name(root: Path) -> None:
    parts = list_images(["sample"])
    assert [len(part) for part in parts] == [3000, 1000]
    assert parts[0].names[17] == "sample/train/17"
    assert parts[1].names[0] == "sample/test/0"
    assert parts[1].labels[0] == "airplane"
    (only,) = list_images(["sample"], split="test")
    assert len(only) == 1000


def test_everything_at_once(root: Path) -> None:
    put("a.png", "b.png", "c.png")
    parts: list[Listed] = list_images(["a.png", "b.png", "sample", "c.png"], split="test")
    assert [len(part) for part in parts] == [2, 1000, 1]


def test_a_name_is_the_dataset_and_a_path_the_folder(root: Path) -> None:
    put("sample/cat/1.png")
    assert len(listed("sample")) == 4000
    assert listed("./sample") == [("sample/cat/1.png", "cat")]


def test_one_image_of_a_dataset_by_its_name(root: Path) -> None:
    (whole,) = list_images(["sample"], split="test")
    found = open_named("sample/test/17")
    assert isinstance(found, ArraySet)
    assert isinstance(whole.images, ArraySet)
    assert found.images[0].equal(whole.images.images[17])
    for name in ("sample/test/1000", "sample/test/x", "photos/test/1", "a.png"):
        assert open_named(name) is None


def test_labels_belong_to_their_files(tmp_path: Path) -> None:
    root = write_colours(tmp_path / "colours", {"train": 3, "test": 2})
    (part,) = list_images([root])
    assert len(part) == 15
    assert set(part.labels) == set(COLOURS)
    assert all(Path(n).parent.name == c for n, c in zip(part.names, part.labels, strict=True))


@pytest.mark.parametrize(
    ("specs", "split", "message"),
    [
        (["none.png"], None, "none.png: no such file or folder"),
        (["no/where"], None, "no/where: no such file or folder"),
        (["sampel"], None, "sampel: no such file, folder or dataset; did you mean sample"),
        (["*.png"], None, r"\*.png: the pattern fits no file"),
        (["empty"], None, "empty: no images; valid endings: .avif .bmp"),
        (["empty"], "test", "split 'test' is for a dataset by name"),
        (["sample"], "tets", "unknown split 'tets'; did you mean test"),
        ([], None, "no images"),
    ],
)
def test_mistakes(root: Path, specs: list[str], split: str | None, message: str) -> None:
    (root / "empty").mkdir()
    with pytest.raises((DataError, UnknownName), match=message):
        list_images(specs, split=split)
