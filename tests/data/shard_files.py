"""The same small images as a folder, as shards and as tables."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from PIL import Image

from vitlab.data.images import IndexedSet
from vitlab.data.shards.layout import find_layout, open_index
from vitlab.data.sources.shards import images_of

CLASSES = ("ant", "bee-eater", "bee", "cat")
"""Not in the order of their names with a slash behind."""
EACH = 11


def write_folder(root: Path, classes: tuple[str, ...] = CLASSES, each: int = EACH) -> Path:
    """Images of random sizes in a folder for each class."""
    draw = np.random.default_rng(0)
    for label in classes:
        (root / label).mkdir(parents=True)
        for number in range(each):
            size = (*draw.integers(20, 40, 2), 3)
            coarse = draw.integers(0, 256, (5, 7, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((int(size[1]), int(size[0])))
            image.save(root / label / f"{number}.v{number % 3}.png")
    return root


def rows_of(root: Path) -> list[dict[str, Any]]:
    """Images of a folder in its order: bytes, path and class."""
    labels = sorted(folder.name for folder in root.iterdir())
    return [
        {
            "image": {
                "bytes": path.read_bytes(),
                "path": path.relative_to(root).as_posix(),
            },
            "label": labels.index(path.parent.name),
        }
        for label in labels
        for path in sorted((root / label).iterdir(), key=str)
    ]


def features(labels: list[str]) -> dict[bytes, bytes]:
    """Metadata of a schema as the library `datasets` writes it."""
    described = {"image": {"_type": "Image"}, "label": {"names": labels, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": described}}).encode()}


def table_of(root: Path) -> arrow.Table:
    """The images in an order of their own."""
    rows = rows_of(root)
    shuffled = [rows[number] for number in np.random.default_rng(1).permutation(len(rows))]
    labels = sorted(folder.name for folder in root.iterdir())
    return arrow.Table.from_pylist(shuffled).replace_schema_metadata(features(labels))


def write_parquet(root: Path, target: Path, *, files: int = 2, rows: int = 5) -> Path:
    """Parquet files of small row groups."""
    target.mkdir()
    table = table_of(root)
    size = -(-table.num_rows // files)
    for number in range(files):
        part = table.slice(number * size, size)
        name = f"train-{number:05}-of-{files:05}.parquet"
        parquet.write_table(part, target / name, row_group_size=rows)
    return target


def write_arrow(root: Path, target: Path, *, stream: bool, compression: str | None = None) -> Path:
    """One Arrow file, as a stream (as `datasets` writes it) or a file, of small batches."""
    table = table_of(root)
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    new = arrow.ipc.new_stream if stream else arrow.ipc.new_file
    with target.open("wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return target


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """A tar file of these members, in this order."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def png(seed: int = 0, size: tuple[int, int] = (9, 11)) -> bytes:
    """A small image."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def train_set(spec: object) -> IndexedSet:
    """All training images of an address."""
    layout = find_layout(str(spec))
    assert layout is not None
    return images_of(open_index(layout), "train")
