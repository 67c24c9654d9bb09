"""Shards and tables: the same images, numbers and batches as the folder that they were made of."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch

from data.shard_files import (
    CLASSES,
    EACH,
    png,
    table_of,
    train_set,
    write_arrow,
    write_folder,
    write_parquet,
    write_tar,
)
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.check.check import check_folder
from vitlab.data.datasets import DataSource, open_data
from vitlab.data.images import FileSet, ImageSet, IndexedSet, joined
from vitlab.data.loader import FileLoader, batches_for_evaluation
from vitlab.data.shards.index import Index
from vitlab.data.shards.layout import find_layout, open_index, write_index
from vitlab.data.shards.pack import pack
from vitlab.data.shards.store import expand_braces
from vitlab.data.sources.folder import open_unlabelled
from vitlab.errors import DataError, InputError
from vitlab.images.preprocessing import HALF, Preprocessing

PREPARED = Preprocessing(size=(24, 20), mean=HALF, std=HALF)
AUGMENTED = AugmentConfig(flip="alternate", random_resized_crop=(0.3, 1.0), mixup=0.4)
Formats = dict[str, str]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Formats:
    """Addresses of the same images."""
    root = tmp_path_factory.mktemp("formats")
    folder = write_folder(root / "folder")
    pack(folder, root / "shards", images=9)
    write_parquet(folder, root / "parquet")
    return {
        "folder": str(folder),
        "shards": str(root / "shards"),
        "pattern": str(root / "shards" / "{00000..00004}.tar"),
        "parquet": str(root / "parquet"),
        "stream": str(write_arrow(folder, root / "stream.arrow", stream=True)),
        "file": str(write_arrow(folder, root / "file.feather", stream=False)),
        "zstd": str(write_arrow(folder, root / "zstd.arrow", stream=True, compression="zstd")),
    }


OTHERS = ("shards", "pattern", "parquet", "stream", "file", "zstd")


def inner(images: ImageSet, number: int) -> str:
    """Class and file of an image."""
    assert not isinstance(images, torch.Tensor)
    return "/".join(images.name(number).parts[-2:])


def held_out(source: DataSource) -> ImageSet:
    assert source.open_test is not None
    return source.open_test()


@pytest.mark.parametrize("other", OTHERS)
def test_the_same_images_in_the_same_order_as_in_the_folder(formats: Formats, other: str) -> None:
    folder, shards = open_data(formats["folder"]), open_data(formats[other])
    assert shards.labels == folder.labels == tuple(sorted(CLASSES))
    assert shards.divided
    assert (shards.mean, shards.std, shards.channels) == (folder.mean, folder.std, 3)
    for opened in ("open_train", "open_test"):
        files, images = getattr(folder, opened)(), getattr(shards, opened)()
        assert isinstance(files, FileSet)
        assert isinstance(images, IndexedSet)
        assert torch.equal(files.labels, images.labels)
        for number in range(len(files)):
            assert inner(files, number) == inner(images, number)
            assert images.source(number).read() == files.paths[number].read_bytes()
        assert len(images) == len(files)
    both = joined(shards.open_train(), held_out(shards))
    assert sorted(both.numbers.tolist()) == list(range(EACH * len(CLASSES)))


def loader(data: FileSet | IndexedSet, workers: int = 0, window: int = 16) -> FileLoader:
    return FileLoader(
        data,
        batch_size=5,
        seed=0,
        augment=AUGMENTED,
        preprocessing=PREPARED,
        classes=len(CLASSES),
        workers=workers,
        window=window,
    )


@pytest.mark.parametrize("other", ["shards", "parquet", "stream"])
def test_batches_are_those_of_the_folder(formats: Formats, other: str) -> None:
    data = [open_data(formats[name]).open_train() for name in ("folder", other)]
    one, two = loader(data[0]), loader(data[1], workers=1 if other == "parquet" else 0)
    for step in (0, 7, 3):
        for mine, theirs in zip(one.batch(step), two.batch(step), strict=True):
            assert torch.equal(mine, theirs)
    two.close()
    pairs = zip(
        *(batches_for_evaluation(each, batch_size=7, preprocessing=PREPARED) for each in data),
        strict=True,
    )
    for mine, theirs in pairs:
        assert torch.equal(mine.images, theirs.images)
        assert torch.equal(mine.targets, theirs.targets)


def test_a_small_window_of_shards_keeps_every_image_once_an_epoch(formats: Formats) -> None:
    data = train_set(formats["shards"])
    shards = data.shards(2)
    assert shards is not None
    assert int(shards.ends[-1]) == len(data) == EACH * len(CLASSES)
    blocks = np.searchsorted(data.index.block_end, data.numbers.numpy(), side="right")
    stream = torch.cat([loader(data, window=2).order.slots(step)[0] for step in range(44)])
    assert stream.view(5, -1).sort(dim=1).values.tolist() == [list(range(44))] * 5
    for epoch in stream.view(5, -1):
        seen = blocks[epoch].tolist()
        for block in set(seen):
            first, last = seen.index(block), len(seen) - seen[::-1].index(block)
            assert len(set(seen[first:last])) <= 2
    subset = data.subset(torch.arange(3, 40, 3))
    order = loader(subset, window=2).order
    stream = torch.cat([order.slots(step)[0] for step in range(13)])
    assert stream.view(5, 13).sort(dim=1).values.tolist() == [list(range(13))] * 5


def test_very_many_images_are_read_shard_by_shard_when_evaluated(
    formats: Formats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.data.images.WINDOW", 3)
    data = train_set(formats["shards"])
    found = list(batches_for_evaluation(data, batch_size=5, preprocessing=PREPARED))
    index = torch.cat([batch.index for batch in found])
    assert data.numbers[index].tolist() == list(range(len(data)))
    assert torch.equal(torch.cat([batch.targets for batch in found]), data.labels[index])


# Splits, labels and columns.


def test_splits_are_folders_or_beginnings_of_names(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_folder(tmp_path / "folder" / split, CLASSES[:2], 4)
    packed = pack(tmp_path / "folder", tmp_path / "out")
    assert (packed.images, packed.shards, packed.skipped) == (16, 2, {})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("classes.txt", "train", "val", "vitlab.index")
    ]
    source = open_data(tmp_path / "out")
    assert not source.divided
    assert source.open_test is not None
    assert (len(source.open_train()), len(source.open_test()), source.tested) == (8, 8, 8)
    flat = tmp_path / "flat"
    flat.mkdir()
    for split in ("train", "val", "test"):
        os.link(tmp_path / "out" / "val" / "00000.tar", flat / f"my-{split}-0.tar")
    layout = find_layout(str(flat))
    assert layout is not None
    assert layout.files.splits == {"train": ("my-train-0.tar",), "test": ("my-test-0.tar",)}
    assert "Files of val are not used" in open_data(flat).notes
    alone = find_layout(f"{flat}/my-v{{al,al}}-0.tar")
    assert alone is not None
    assert alone.files.splits == {"train": ("my-val-0.tar",)}


def test_labels_of_tar_shards(tmp_path: Path) -> None:
    image = png()
    cases: dict[str, tuple[dict[str, bytes], object]] = {
        "numbers": ({"a.jpg": image, "a.cls": b"10", "b.jpg": image, "b.cls": b"2\n"}, [1, 0]),
        "names": ({"a.cls": b"dog", "a.jpg": image, "b.cls": b"ant", "b.png": image}, [1, 0]),
        "json": (
            {
                "a.jpg": image,
                "a.json": b'{"label": "y"}',
                "b.jpg": image,
                "b.json": b'{"label": 7}',
            },
            [1, 0],
        ),
        "folders": ({"x/a/1.jpg": image, "w/b/1.jpg": image}, [1, 0]),
        "several": (
            {
                "a.jpg": image,
                "a.json": b'{"labels": ["q", "p"]}',
                "b.jpg": image,
                "b.json": b'{"labels": []}',
            },
            [[True, True], [False, False]],
        ),
        "values": (
            {
                "a.jpg": image,
                "a.json": b'{"value": [1.5, 2]}',
                "b.jpg": image,
                "b.json": b'{"value": [3, 4]}',
            },
            [[1.5, 2.0], [3.0, 4.0]],
        ),
    }
    for name, (members, expected) in cases.items():
        write_tar(tmp_path / f"{name}.tar", members)
        data = train_set(tmp_path / f"{{{name},{name}}}.tar")
        order = data.numbers.argsort()
        assert data.labels[order].tolist() == expected, name


def test_classes_by_number_are_named_by_a_file_beside_the_shards(tmp_path: Path) -> None:
    (tmp_path := tmp_path / "shards").mkdir()
    write_tar(tmp_path / "0.tar", {"a.jpg": png(), "a.cls": b"1", "b.jpg": png(1), "b.cls": b"1"})
    (tmp_path / "classes.txt").write_text("owl\nÄffin\nfox\n", encoding="utf-8")
    index = train_set(tmp_path).index
    assert index.header.labels == ("owl", "Äffin", "fox")
    assert index.label.tolist() == [1, 1]
    (tmp_path / "1.tar").write_bytes(
        write_tar(tmp_path / "x", {"c.jpg": png(), "c.cls": b"3"}).read_bytes()
    )
    with pytest.raises(DataError, match=r"lacks 1\.tar; write it anew: vitlab data index"):
        open_data(tmp_path)
    with pytest.raises(DataError, match=r"1\.tar: class 3; valid: 0 to 2"):
        write_index(find_layout(str(tmp_path)), force=True)


def test_columns_of_tables(tmp_path: Path) -> None:
    images = [png(0), None, png(2)]
    cases: dict[str, tuple[dict[str, list[object]], object]] = {
        "label": ({"image": images, "label": ["b", "a", "b"]}, [1, 0, 1]),
        "#label=kind": ({"image": images, "kind": [7, 30, 7], "label": [0, 0, 0]}, [0, 1, 0]),
        "#image=left": ({"left": images, "right": images, "label": [1, 0, 2]}, [1, 0, 2]),
        "labels": (
            {"image": images, "labels": [["b"], [], ["a", "b"]]},
            [[False, True], [False, False], [True, True]],
        ),
        "value": (
            {"image": images, "value:tall": [1.0, 2.0, 3.0], "value:wide": [4, 5, 6]},
            [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]],
        ),
    }
    for number, (name, (columns, expected)) in enumerate(cases.items()):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(arrow.table(columns), path)
        data = train_set(f"{path}{name if name.startswith('#') else ''}")
        order = data.numbers.argsort()
        assert data.labels[order].tolist() == expected, name
        assert data.index.read(2) == images[2]
        with pytest.raises(InputError, match="an empty file"):
            data.index.read(1)
    assert data.index.header.labels == ("tall", "wide")


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no images": (
        lambda p: write_tar(p / "a.tar", {"a.txt": b"x"}),
        r"a\.tar and others: no images in them",
    ),
    "two images": (
        lambda p: write_tar(p / "a.tar", {"x.png": png(), "x.jpg": png()}),
        r"x\.png and x\.jpg are images of one sample",
    ),
    "two files of one name": (
        lambda p: write_tar(p / "a.tar", {"x.png": png(), "x.PNG": png(1), "x.cls": b"u"}),
        r"x\.png: two files of one name in a sample",
    ),
    "strange label": (
        lambda p: write_tar(p / "a.tar", {"x.png": png(), "x.json": b'{"label": [1]}'}),
        r"x\.json: label is '\[1\]'; valid: a label",
    ),
    "other kind": (
        lambda p: write_tar(
            p / "a.tar",
            {"x.png": png(), "x.cls": b"a", "y.png": png(), "y.json": b'{"value": 1}'},
        ),
        r"sample 1: numbers; samples before it have a class",
    ),
    "no bytes": (
        lambda p: parquet.write_table(arrow.table({"label": [1, 2]}), p / "a.parquet"),
        r"no column holds bytes among label; valid: #image=COLUMN",
    ),
    "two columns": (
        lambda p: parquet.write_table(
            arrow.table({"a": [b"x"], "b": [b"y"], "label": [1]}), p / "a.parquet"
        ),
        r"columns a, b hold bytes among a, b, label; valid: #image=COLUMN",
    ),
    "two labels": (
        lambda p: parquet.write_table(
            arrow.table({"a": [b"x"], "labels": [["y"]], "label": [1]}), p / "a.parquet"
        ),
        r"columns label, labels may be labels; valid: #label=COLUMN",
    ),
    "two kinds": (
        lambda p: (write_tar(p / "a.tar", {"x.png": png()}), (p / "b.parquet").write_bytes(b"")),
        r"files of \.parquet and \.tar; valid: one kind",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(tmp_path: Path, mistake: str) -> None:
    make, expected = MISTAKES[mistake]
    (tmp_path := tmp_path / "shards").mkdir()
    make(tmp_path)
    with pytest.raises(DataError, match=expected) as caught:
        open_data(tmp_path)
    assert "\n" not in str(caught.value)


def test_labels_that_training_needs(tmp_path: Path) -> None:
    (tmp_path := tmp_path / "shards").mkdir()
    write_tar(tmp_path / "a.tar", {"x.png": png(), "y.png": png(1)})
    with pytest.raises(DataError, match="no labels; valid: shards or tables with labels"):
        open_data(tmp_path)
    assert len(open_unlabelled(tmp_path).open_train()) == 2
    with pytest.raises(DataError, match="holds shards or tables; valid: a folder of images"):
        pack(tmp_path, tmp_path / "packed")
    (tmp_path / "b").mkdir()
    write_tar(tmp_path / "b" / "a.tar", {"x.png": png(), "x.cls": b"u", "y.png": png(1)})
    with pytest.raises(DataError, match="holds one class, 'u'"):
        open_data(tmp_path / "b")
    (tmp_path / "c").mkdir()
    members = {"x.png": png(), "x.cls": b"u", "y.png": png(1), "z.png": png(2), "z.cls": b"v"}
    write_tar(tmp_path / "c" / "a.tar", members)
    with pytest.raises(DataError, match=r"1 samples without a label; one is a\.tar/y\.png"):
        open_data(tmp_path / "c")


def test_braces() -> None:
    assert list(expand_braces("a{8..11}.tar")) == ["a8.tar", "a9.tar", "a10.tar", "a11.tar"]
    assert list(expand_braces("{08..10}/{a,b}")) == [
        *("08/a", "08/b", "09/a", "09/b", "10/a", "10/b")
    ]
    assert list(expand_braces("plain")) == ["plain"]
    with pytest.raises(DataError, match=r"\{1\}; valid: \{000\.\.127\} or \{a,b\}"):
        list(expand_braces("{1}"))


# The index.


def test_a_folder_of_classes_with_an_archive_beside_them_is_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", CLASSES[:2], 3)
    write_tar(tmp_path / "a" / "original.tar", {"x.png": png()})
    assert find_layout(str(tmp_path / "a")) is None
    (tmp_path / "b").mkdir()
    write_tar(tmp_path / "b" / "backup.tar", {"x.png": png()})
    (tmp_path / "b" / "photo.png").write_bytes(png())
    assert find_layout(str(tmp_path / "b")) is None


def test_names_that_need_care_keep_their_names(tmp_path: Path) -> None:
    names = ["a.jpg", "a.png", "a.b.png", "50%.png", "50%25.png", "%2E.png", "ä ö.png", "n\nl.png"]
    for label in ("x", "y.z"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for number, name in enumerate(names):
            (tmp_path / "in" / label / name).write_bytes(png(number))
    pack(tmp_path / "in", tmp_path / "out", images=5)
    data = train_set(tmp_path / "out")
    found = sorted("/".join(data.name(number).parts[-2:]) for number in range(len(data)))
    assert found == sorted(f"{label}/{name}" for label in ("x", "y.z") for name in names)
    for number in range(len(data)):
        original = tmp_path / "in" / "/".join(data.name(number).parts[-2:])
        assert data.source(number).read() == original.read_bytes()


def test_the_index_lies_in_the_users_folder_where_the_shards_are_read_only(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "0.tar", {"x/a.png": png(), "y/b.png": png(1)})
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    layout = find_layout(str(tmp_path))
    assert layout is not None
    index = open_index(layout)
    assert index.folder.is_relative_to(home / "indexes")
    assert open_index(layout).folder == index.folder


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no header": lambda p: (p / "index.json").write_text("{}"),
    "not JSON": lambda p: (p / "index.json").write_bytes(b"\xff"),
    "missing array": lambda p: (p / "offset.npy").unlink(),
    "cut array": lambda p: os.truncate(p / "size.npy", 130),
    "other type": lambda p: np.save(p / "size.npy", np.zeros(44, np.int64)),
    "other length": lambda p: np.save(p / "digest.npy", np.zeros(43, np.uint64)),
    "strange blocks": lambda p: np.save(
        p / "block_end.npy", np.array([9, 3, 27, 36, 44], np.int64)
    ),
    "strange file": lambda p: np.save(p / "block_file.npy", np.array([0, 1, 2, 3, 5], np.int32)),
    "strange names": lambda p: np.save(p / "names.npy", np.zeros(3, np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_one_line(formats: Formats, tmp_path: Path, damage: str) -> None:
    import shutil

    shutil.copytree(formats["shards"], tmp_path / "shards")
    index = tmp_path / "shards" / "vitlab.index"
    DAMAGES[damage](index)
    with pytest.raises(DataError, match=r"vitlab\.index: a damaged index \(.*data index --force"):
        open_data(tmp_path / "shards")
    write_index(find_layout(str(tmp_path / "shards")), force=True)
    assert len(open_data(tmp_path / "shards").open_train()) == 35


def test_indexing_twice_gives_the_same_bytes(formats: Formats, tmp_path: Path) -> None:
    for name in ("shards", "parquet"):
        layout = find_layout(formats[name])
        assert layout is not None
        first = open_index(layout)
        files = {path.name: path.read_bytes() for path in first.folder.iterdir()}
        write_index(layout, force=True)
        assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == files
        again = Index.from_json(json.loads(json.dumps(first.to_json())))
        assert [again.name(n) for n in range(len(again))] == [
            first.name(n) for n in range(len(first))
        ]


def test_broken_samples_are_found_by_the_survey(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    table = table_of(folder).to_pylist()
    table[3]["image"]["bytes"] = table[3]["image"]["bytes"][:100]
    table[5]["image"]["bytes"] = b"no image"
    parquet.write_table(arrow.Table.from_pylist(table), tmp_path / "a.parquet")
    source = open_data(tmp_path / "a.parquet")
    train = source.open_train()
    assert train.survey is not None
    names = [f"a.parquet/{table[number]['image']['path']}" for number in (3, 5)]
    assert sorted(train.survey.broken) == sorted(names)
    assert len(train) + len(held_out(source)) == 42


def test_checking_shards_finds_what_checking_the_folder_finds(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    (folder / "ant" / "copy.png").write_bytes((folder / "bee" / "0.v0.png").read_bytes())
    (folder / "ant" / "broken.png").write_bytes(b"no image")
    (folder / "cat" / "narrow.png").write_bytes(png(5, (4, 90)))
    pack(folder, tmp_path / "shards", images=9)
    here, there = check_folder(folder), check_folder(tmp_path / "shards")
    assert (there.counts, there.height, there.width) == (here.counts, here.height, here.width)
    assert [(found.name, found.count) for found in there.findings] == [
        (found.name, found.count) for found in here.findings
    ]
    assert there.images == 46
    assert {found.name for found in there.findings} >= {"conflicting", "not_images", "narrow"}
