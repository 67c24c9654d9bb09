"""Files of features: what is written comes back, a piece at a time; damage is one line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.errors import DataError, FileError, MissingExtra
from vitlab.evaluation.feature_file import FeatureInfo, reading_features, writing_features
from vitlab.images.preprocessing import Preprocessing

COUNT, ROWS, COLUMNS, WIDTH = 23, 3, 5, 7
NAMES = ["ß/é 猫.jpg", "no-text-\udcff.jpg", *(f"folder/{i}.jpg" for i in range(COUNT - 2))]
LABELS = ["cat", "", *("dög" if i % 2 else "" for i in range(COUNT - 2))]
FORMATS = ["npz", "parquet"]


def info(*shape: int) -> FeatureInfo:
    return FeatureInfo(
        model="/models/a.safetensors",
        weights="0123" * 16,
        kind="cls",
        layer=4,
        preprocessing=Preprocessing(size=(32, 48), mean=(0.5,) * 3, std=(0.25,) * 3),
        shape=shape,
        folder="/photos",
    )


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(COUNT, *shape)).astype(np.float32)


def write(path: Path, *shape: int, batch: int = 4) -> NDArray[np.float32]:
    features = numbers(*shape)
    with writing_features(path, info(*shape)) as writer:
        for start in range(0, COUNT, batch):
            part = slice(start, start + batch)
            writer.add(features[part], NAMES[part], LABELS[part])
    return features


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return tmp_path / f"features.{request.param}"


@pytest.mark.parametrize("shape", [(WIDTH,), (ROWS, COLUMNS, WIDTH)])
@pytest.mark.parametrize("rows", [1, 6, COUNT, 1000])
def test_what_is_written_comes_back(path: Path, shape: tuple[int, ...], rows: int) -> None:
    features = write(path, *shape)
    with reading_features(path) as reader:
        chunks = list(reader.chunks(rows))
        assert max(map(len, chunks)) <= rows
        assert np.concatenate(chunks).tobytes() == features.tobytes()
        assert np.concatenate(chunks).shape == (COUNT, *shape)
        assert (reader.info, reader.count) == (info(*shape), COUNT)
        picked = [COUNT - 1, 0, 5, 0]
        assert reader.names(picked) == [(NAMES[i], LABELS[i]) for i in picked]


def test_a_name_that_is_no_text(path: Path) -> None:
    write(path, WIDTH)
    with reading_features(path) as reader:
        expected = NAMES[1] if path.suffix == ".npz" else "no-text-?.jpg"
        assert reader.names([1]) == [(expected, "")]


def test_numpy_reads_it_without_pickle(tmp_path: Path) -> None:
    features = write(tmp_path / "a.npz", WIDTH)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert set(archive) == {"features", "paths", "labels", "metadata"}
        np.testing.assert_array_equal(archive["features"], features)
        assert archive["features"].dtype == np.float32
        assert archive["paths"].tolist() == NAMES
        assert archive["labels"].tolist() == LABELS
        metadata = json.loads(str(archive["metadata"]))
    assert metadata == info(WIDTH).to_json()
    assert metadata["preprocessing"]["size"] == [32, 48]


def test_other_programs_read_the_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    features = write(tmp_path / "a.parquet", WIDTH)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["path", "label", "features"]
    assert table["label"].to_pylist() == [label or None for label in LABELS]
    np.testing.assert_array_equal(np.array(table["features"].to_pylist()), features)


@pytest.mark.parametrize("format", FORMATS)
def test_batches_leave_no_trace(format: str, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    a, b = tmp_path / f"a.{format}", tmp_path / f"b.{format}"
    write(a, WIDTH, batch=4)
    write(b, WIDTH, batch=11)
    assert a.read_bytes() == b.read_bytes()


def stopped(path: Path) -> None:
    with writing_features(path, info(WIDTH)) as writer:
        writer.add(numbers(WIDTH), NAMES, LABELS)
        raise RuntimeError("stopped")


def test_an_unfinished_file_is_never_seen(path: Path) -> None:
    path.write_bytes(b"what was there")
    with pytest.raises(RuntimeError, match="stopped"):
        stopped(path)
    assert path.read_bytes() == b"what was there"
    assert list(path.parent.iterdir()) == [path]


def test_no_image_at_all(path: Path) -> None:
    with writing_features(path, info(WIDTH)):
        pass
    with reading_features(path) as reader:
        assert (reader.count, list(reader.chunks(5)), reader.names([])) == (0, [], [])


def opened(path: Path) -> Iterator[None]:
    with reading_features(path) as reader:
        yield from (None for _ in reader.chunks(5))
        reader.names([0])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"<html>", b"\0" * 99])
def test_other_files_are_one_line(format: str, content: bytes, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"a.{format}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.{format}: not a.* damaged one") as error:
        list(opened(path))
    assert "\n" not in str(error.value)


def test_damage_inside_is_one_line(path: Path) -> None:
    write(path, ROWS, COLUMNS, WIDTH)
    content = path.read_bytes()
    for start in range(40, len(content) - 40, 97):
        path.write_bytes(content[:start])
        with pytest.raises(DataError, match="damaged") as error:
            list(opened(path))
        assert "\n" not in str(error.value)


def test_a_flipped_bit_in_the_features_is_noticed(tmp_path: Path) -> None:
    features = write(tmp_path / "a.npz", WIDTH)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(features.tobytes()) + 5] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"damaged array .*CRC"):
        list(opened(tmp_path / "a.npz"))


def metadata(**changes: object) -> str:
    return json.dumps({**info(WIDTH).to_json(), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": None}, "no array 'metadata'; valid: a file that vitlab features wrote"),
        ({"metadata": "no JSON"}, "metadata that is not JSON"),
        ({"metadata": np.zeros(3)}, "metadata that is not ours"),
        ({"metadata": metadata(format_version=2)}, "metadata of version 2; valid: 1"),
        ({"metadata": metadata(kind="smell")}, "metadata that is not ours .*kind"),
        ({"metadata": metadata(more=1)}, "unknown key 'more'"),
        ({"paths": np.array(NAMES[:-1])}, "do not go together"),
        ({"labels": None}, "no array 'labels'"),
        ({"features": numbers(WIDTH + 1)}, "do not go together"),
        ({"features": np.float32(3)}, "do not go together"),
        ({"features": np.zeros((COUNT, WIDTH), int)}, "array 'features' of int64"),
        ({"features": np.asfortranarray(numbers(WIDTH))}, "by columns"),
        ({"paths": np.array(NAMES, object)}, "pickled objects"),
    ],
)
def test_archives_of_others(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    arrays = {
        "features": numbers(WIDTH),
        "paths": np.array(NAMES),
        "labels": np.array(LABELS),
        "metadata": metadata(),
        **changes,
    }
    kept = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "a.npz", **kept)
    with pytest.raises(DataError, match=message):
        list(opened(tmp_path / "a.npz"))


def test_an_archive_that_numpy_wrote_again_is_fine(tmp_path: Path) -> None:
    features = write(tmp_path / "a.npz", WIDTH)
    with np.load(tmp_path / "a.npz") as archive:
        np.savez_compressed(tmp_path / "b.npz", **archive)
    with reading_features(tmp_path / "b.npz") as reader:
        np.testing.assert_array_equal(np.concatenate(list(reader.chunks(5))), features)
        assert reader.names([0]) == [(NAMES[0], LABELS[0])]


def test_a_parquet_of_others(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column 'path'; valid: a file that vitlab features"):
        list(opened(tmp_path / "a.parquet"))
    columns = {"path": ["x"], "label": ["y"], "features": [[1.0]]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no metadata of vitlab"):
        list(opened(tmp_path / "a.parquet"))


def test_names_that_say_no_format(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"ending '.csv'; valid: .npz, .parquet"):
        writing_features(tmp_path / "a.csv", info(WIDTH))
    with pytest.raises(DataError, match="no such file"):
        list(opened(tmp_path / "a.npz"))


def test_no_folder_to_write_to(path: Path) -> None:
    place = path.parent / "none" / path.name
    with pytest.raises(FileError, match="cannot be written"), writing_features(place, info(WIDTH)):
        pass


def test_parquet_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        pytest.raises(MissingExtra, match=r"pip install 'vitlab\[parquet\]'"),
        writing_features(tmp_path / "a.parquet", info(WIDTH)),
    ):
        pass
    assert not list(tmp_path.iterdir())
