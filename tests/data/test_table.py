"""CSV files: what the header decides, and one clear line for everything that is wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.data.datasets import open_data
from vitlab.data.images import FileSet
from vitlab.data.sources.targets import split_labels
from vitlab.errors import DataError


def images(folder: Path, count: int, place: str = "images") -> list[str]:
    """Colour noise in files; their names."""
    draw = np.random.default_rng(0)
    (folder / place).mkdir(parents=True, exist_ok=True)
    names = [f"{place}/{i:03}.png" for i in range(count)]
    for name in names:
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name)
    return names


def table(folder: Path, header: str, cells: list[str], name: str = "labels.csv") -> Path:
    names = images(folder, len(cells), Path(name).stem)
    rows = [f"{path},{cell}" for path, cell in zip(names, cells, strict=True)]
    file = folder / name
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def opened(split: object) -> FileSet:
    assert callable(split)
    found = split()
    assert isinstance(found, FileSet)
    return found


def test_a_column_label_holds_classes_even_if_they_are_numbers(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,label", ["10", "9", "2", "10"] * 5))
    assert source.task == "single-label"
    assert source.labels == ("2", "9", "10")
    train, test = opened(source.open_train), opened(source.open_test)
    assert (len(train), len(test)) == (16, 4)
    assert train.labels.dtype == torch.int64
    told = dict(zip(train.paths, train.labels.tolist(), strict=True))
    assert all(told[path] == (2, 1, 0, 2)[int(path.stem) % 4] for path in told)
    assert source.notes == (
        "labels.csv: column label holds a class for each image: single-label, 3 classes, 20 images",
    )


@pytest.mark.parametrize("mark", [";", "|", " ; "])
def test_a_column_labels_holds_any_number_of_them(tmp_path: Path, mark: str) -> None:
    cells = [f"cat{mark}dog", "", "dog", f"bird{mark}cat{mark}bird"] * 5
    source = open_data(table(tmp_path, "path,labels", cells))
    assert (source.task, source.labels) == ("multi-label", ("bird", "cat", "dog"))
    train = opened(source.open_train)
    assert train.labels.dtype == torch.bool
    rows = {0: [0, 1, 1], 1: [0, 0, 0], 2: [0, 0, 1], 3: [1, 1, 0]}
    for path, row in zip(train.paths, train.labels.int().tolist(), strict=True):
        assert row == rows[int(path.stem) % 4]


def test_columns_of_marks_are_labels(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,cat,dog", ["1,0", "0,0", "1,1", "0,1"] * 5))
    assert (source.task, source.labels) == ("multi-label", ("cat", "dog"))
    assert opened(source.open_train).labels.shape == (16, 2)


def test_a_column_value_holds_numbers(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,value", [str(i / 4) for i in range(40)]))
    assert (source.task, source.labels) == ("regression", ("value",))
    train, test = opened(source.open_train), opened(source.open_test)
    for part in (train, test):
        assert part.labels[:, 0].tolist() == [int(path.stem) / 4 for path in part.paths]
    # Low, middle and high values are on both sides.
    assert ((test.labels // 2.5).unique() == torch.arange(4)).all()


def test_several_values_have_names(tmp_path: Path) -> None:
    cells = [f"{i},{-i}" for i in range(20)]
    source = open_data(table(tmp_path, "path,value:width,value:depth", cells))
    assert (source.task, source.labels) == ("regression", ("width", "depth"))
    train = opened(source.open_train)
    assert torch.equal(train.labels[:, 0], -train.labels[:, 1])


def test_other_columns_are_ignored_and_that_is_said(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,label,camera", ["a,x", "b,y"] * 5))
    assert "(ignored: camera)" in source.notes[0]


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    table(tmp_path, "path,label", ["a", "b", "a"], "train.csv")
    table(tmp_path, "path,label", ["b", "b"], "val.csv")
    source = open_data(tmp_path)
    assert opened(source.open_train).labels.tolist() == [0, 1, 0]
    assert opened(source.open_test).labels.tolist() == [1, 1]
    table(tmp_path, "path,label", ["a", "b"], "test.csv")
    source = open_data(tmp_path)
    assert opened(source.open_test).labels.tolist() == [0, 1]
    assert "val.csv is not used: the test images are those of test.csv" in source.notes


def test_a_column_split_says_what_is_for_testing(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,label,split", ["a,train", "b,test", "b,train"]))
    assert opened(source.open_train).labels.tolist() == [0, 1]
    assert opened(source.open_test).labels.tolist() == [1]


def test_one_part_alone_is_for_testing(tmp_path: Path) -> None:
    rows = ["a,train", "b,val", "b,train", "a,test", "b,val"]
    source = open_data(table(tmp_path, "path,label,split", rows))
    assert opened(source.open_test).labels.tolist() == [0]
    assert any("2 images of split val are not used" in note for note in source.notes)


@pytest.mark.parametrize("again", ["images/000.png", "./images/../images/000.png"])
def test_what_is_learnt_from_is_not_for_testing(again: str, tmp_path: Path) -> None:
    images(tmp_path, 3)
    rows = ["images/000.png,a,train", "images/001.png,b,train", f"{again},a,test"]
    (tmp_path / "x.csv").write_text("\n".join(["path,label,split", *rows]))
    with pytest.raises(DataError, match=r"line 4: .* for testing, and for training in line 2"):
        open_data(tmp_path / "x.csv")


def test_semicolons_tabs_and_a_byte_order_mark(tmp_path: Path) -> None:
    names = images(tmp_path, 4)
    for mark in ";\t":
        rows = [f"{name}{mark}{'ab'[i % 2]}" for i, name in enumerate(names)]
        text = "\r\n".join([f"path{mark}label", *rows, ""])
        (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert open_data(tmp_path / "x.csv").labels == ("a", "b")


def test_a_label_that_the_test_part_alone_has_is_named(tmp_path: Path) -> None:
    table(tmp_path, "path,label", ["cat", "dog"], "train.csv")
    table(tmp_path, "path,label", ["dog", "dgo"], "test.csv")
    with pytest.raises(DataError, match=r"test.csv, line 3: the label 'dgo' is not trained; did"):
        open_data(tmp_path)


WRONG = {
    "path,label\n": "holds a header and no row",
    "": "is empty",
    "file,label\nx.png,a\n": "no column 'path' among file, label",
    "images/000.png,a\nimages/001.png,b\n": "no column 'path'",
    "path\nimages/000.png\n": "hold no labels",
    "path,class\nimages/000.png,0\n": "hold no labels; valid: label",
    "path,label,labels\nimages/000.png,a,b\n": "columns 'label' and 'labels'",
    "path,label\nimages/000.png,a\nimages/009.png,b\n": "line 3: no such file: images/009.png",
    "path,label\nimages/000.png,a\n,b\n": "line 3: no such file: an empty path",
    "path,label\nimages/000.png,a\nimages/001.png\n": "line 3: 1 cells; the header has 2",
    "path,label\nimages/000.png,a\n\nimages/001.png,\n": "line 4: no label",
    "path,label\nimages/000.png,a\nimages/000.png,b\n": "'images/000.png' again, after line 2",
    "path,label\nimages/000.png,a\nimages/001.png,a\n": "one class, 'a'; valid: at least 2",
    "path,label\nimages/000.png,Cat\nimages/001.png,cat\n": "differ only in case",
    "path,labels\nimages/000.png,\nimages/001.png,;\n": "no row has a label",
    "path,cat,dog\nimages/000.png,1,0\nimages/001.png,0,maybe\n": "line 3: dog is 'maybe'; valid",
    "path,value\nimages/000.png,1\nimages/001.png,far\n": "line 3: value is 'far'; valid: a finite",
    "path,value\nimages/000.png,1\nimages/001.png,nan\n": "line 3: value is 'nan'",
    "path,value\nimages/000.png,1\nimages/001.png,1.0\n": "every value is 1; nothing is",
    "path,label,split\nimages/000.png,a,train\nimages/001.png,b,tset\n": "split 'tset'; did you",
    'path,label\nimages/000.png,a\n"images/001.png,b\n': "not CSV",
    "path,label,label\nimages/000.png,a,a\n": "the column 'label' twice",
}


@pytest.mark.parametrize(("content", "message"), WRONG.items())
def test_what_is_wrong_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    images(tmp_path, 2)
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(DataError) as error:
        open_data(tmp_path / "labels.csv")
    assert message in str(error.value)
    assert str(tmp_path / "labels.csv") in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"path,label\n\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8 text"):
        open_data(tmp_path / "x.csv")
    with pytest.raises(DataError, match="No such file"):
        open_data(tmp_path / "y.csv")


def test_labels_of_a_cell() -> None:
    assert split_labels(" a; b |c;;") == ["a", "b", "c"]
    assert split_labels("") == []
