"""Parquet and Arrow files: a column of images as bytes, and columns with labels.

An uncompressed Arrow file is read at any place, like a tar shard. Of a Parquet file or a compressed
Arrow file, the images of some row groups (or record batches) are copied into a cache. Needs the
extra `parquet`.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from vitlab.config import parse_json
from vitlab.data.shards.index import content_digest
from vitlab.data.shards.samples import Block, Damaged, Sample, Target
from vitlab.data.shards.store import PARQUET, Store, StoreError
from vitlab.data.shards.tar import LARGEST, target_of
from vitlab.errors import DataError, MissingExtra, VitlabError, damage_as

BLOCK_BYTES = 64 << 20
"""Least size of a copy that is made of a file, except its last."""
NAMES = ("path", "__key__", "file_name", "filename")
"""Columns that name the image of a row."""
METADATA = b"huggingface"
"""Key of a schema's metadata under which `datasets` describes its columns."""


class RangeFile(io.RawIOBase):
    """A file of a store, read in the parts that are needed."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._size, self._place = store.size(name), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        end = min(self._place + len(buffer), self._size)
        if end <= self._place:
            return 0
        content = self._store.read(self._name, self._place, end)
        buffer[: len(content)] = content
        self._place = end
        return len(content)


@dataclass(kw_only=True)
class Table:
    """An open file of rows in groups."""

    schema: Any
    groups: Sequence[int]
    """Number of rows of each group."""
    read: Callable[[int, Sequence[str]], Any]
    """Columns of a group, as a RecordBatch or a Table."""
    start: int | None = None
    """Address of the file in memory, if it is mapped."""
    size: int = 0
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes of columns that declare them."""


@contextmanager
def open_table(store: Store, name: str) -> Iterator[Table]:
    """A file of rows; raises DataError for any other file."""
    arrow, parquet = _pyarrow()
    with ExitStack() as stack:
        with damage_as(StoreError, "cannot be opened"):
            source = RangeFile(store, name) if store.remote else store.path(name)
            if name.endswith(PARQUET):
                table = _open_parquet(stack.enter_context(parquet.ParquetFile(source)))
            else:
                table = _open_arrow(arrow, source)
        table.classes = _declared(table.schema)
        yield table


def _open_parquet(opened: Any) -> Table:
    groups = range(opened.num_row_groups)
    return Table(
        schema=opened.schema_arrow,
        groups=[opened.metadata.row_group(number).num_rows for number in groups],
        read=lambda group, columns: opened.read_row_group(group, columns=list(columns)),
    )


def _open_arrow(arrow: Any, source: Any) -> Table:
    """An Arrow file of either form: `datasets` writes streams, others files."""
    mapped = arrow.memory_map(source) if isinstance(source, str) else arrow.PythonFile(source)
    whole = mapped.read_buffer() if isinstance(source, str) else arrow.py_buffer(mapped.read())
    try:
        reader = arrow.ipc.open_file(whole)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except arrow.ArrowInvalid:
        reader = arrow.ipc.open_stream(whole)
        batches = list(reader)
    return Table(
        schema=reader.schema,
        groups=[batch.num_rows for batch in batches],
        read=lambda group, columns: batches[group].select(list(columns)),
        start=whole.address,
        size=whole.size,
    )


def _declared(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of classes that `datasets` wrote into the metadata of a schema."""
    text = (schema.metadata or {}).get(METADATA)
    if text is None:
        return {}
    try:
        features = parse_json(text)["info"]["features"]
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (VitlabError, KeyError, TypeError, AttributeError):
        return {}


# The columns of images, names and labels.


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a table by their use."""

    image: str
    name: str | None
    label: tuple[str, ...]
    """Empty: the rows have no labels."""

    @property
    def read(self) -> list[str]:
        """Columns to read for an index."""
        return list(dict.fromkeys([self.image, *([self.name] if self.name else []), *self.label]))


def choose_columns(table: Table, wanted: Mapping[str, str]) -> Columns:
    """Columns by their types and names, or as in `wanted` (`image`, `label`)."""
    arrow, _ = _pyarrow()
    types = {each.name: each.type for each in table.schema}
    for name in wanted.values():
        if name not in types:
            raise DataError(f"no column {name!r}; valid: {', '.join(types)}")
    images = [name for name, kind in types.items() if _holds_images(arrow, kind)]
    if "image" not in wanted and len(images) != 1:
        found = f"columns {', '.join(images)} hold bytes" if images else "no column holds bytes"
        raise DataError(f"{found} among {', '.join(types)}; valid: #image=COLUMN")
    image = wanted.get("image") or images[0]
    if not _holds_images(arrow, types[image]):
        raise DataError(f"column {image!r} is {types[image]}; valid: bytes of images")
    texts = (name for name in NAMES if name in types and arrow.types.is_string(types[name]))
    return Columns(
        image=image, name=next(texts, None), label=_label_columns(table, types, wanted.get("label"))
    )


def _label_columns(table: Table, types: Mapping[str, Any], wanted: str | None) -> tuple[str, ...]:
    if wanted is not None:
        return (wanted,)
    values = tuple(name for name in types if name == "value" or name.startswith("value:"))
    found = [name for name in ("label", "labels") if name in types] or list(table.classes)
    if len(found) + bool(values) > 1:
        listed = ", ".join([*found, *values])
        raise DataError(f"columns {listed} may be labels; valid: #label=COLUMN")
    return tuple(found) or values


def _holds_images(arrow: Any, kind: Any) -> bool:
    if arrow.types.is_struct(kind):
        return any(
            each.name == "bytes" and _is_bytes(arrow, each.type)
            for each in (kind.field(number) for number in range(kind.num_fields))
        )
    return _is_bytes(arrow, kind)


def _is_bytes(arrow: Any, kind: Any) -> bool:
    kinds = arrow.types
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


# Samples for an index, and copies of images.


@dataclass(kw_only=True)
class TableFacts:
    """Facts about a file that hold for all of its samples."""

    image: str | None = None
    """Column of the images."""
    classes: tuple[str, ...] = ()
    """Names of classes that are given by number, or of values."""


def scan_table(
    store: Store, name: str, wanted: Mapping[str, str], facts: TableFacts
) -> Iterator[Block]:
    """Samples of a file, block by block; `Damaged` where a group of rows cannot be read."""
    with open_table(store, name) as table:
        columns = choose_columns(table, wanted)
        facts.image = columns.image
        facts.classes = table.classes.get(columns.label[0], ()) if columns.label else ()
        if len(columns.label) > 1 or columns.label[:1] == ("value",):
            facts.classes = tuple(each.removeprefix("value:") for each in columns.label)
        first, row, size, samples = 0, 0, 0, list[Sample]()
        for group in range(len(table.groups)):
            content = _group(table, group, columns.read)
            images = _images(content, columns.image)
            places = _places(images, table)
            found = list(_samples(content, images, columns, table, row, size, places))
            row += len(found)
            samples += found
            if places is None:
                size += sum(sample.size for sample in found)
            last = group + 1 == len(table.groups)
            if places is None and samples and (size >= BLOCK_BYTES or last):
                yield Block(samples, (first, group + 1), size)
                first, size, samples = group + 1, 0, []
        if samples:
            yield Block(samples, (0, 0), table.size)


def write_images(
    store: Store, name: str, column: str, groups: Sequence[int], target: BinaryIO
) -> None:
    """Write the images of some row groups, one after the other."""
    with open_table(store, name) as table:
        for group in groups:
            for image in _images(_group(table, group, [column]), column):
                if image.is_valid:
                    target.write(image.as_buffer())


def _group(table: Table, group: int, columns: Sequence[str]) -> Any:
    arrow, _ = _pyarrow()
    try:
        content = table.read(group, columns)
    except VitlabError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise Damaged(
            f"row group {group} cannot be read ({' '.join(str(error).split())})"
        ) from error
    return content


def _images(content: Any, column: str) -> Any:
    """Column of bytes as one array."""
    arrow, _ = _pyarrow()
    images = content.column(column)
    images = images.combine_chunks() if isinstance(images, arrow.ChunkedArray) else images
    images = images.chunk(0) if isinstance(images, arrow.ChunkedArray) else images
    return arrow.compute.struct_field(images, "bytes") if _is_struct(images) else images


def _is_struct(images: Any) -> bool:
    arrow, _ = _pyarrow()
    return bool(arrow.types.is_struct(images.type))


def _places(images: Any, table: Table) -> list[int] | None:
    """Offset of each image in the mapped file; None: they are not in it as they are."""
    if table.start is None or not len(images) or str(images.type) not in ("binary", "large_binary"):
        return None
    buffers = images.buffers()
    if buffers[2] is None:
        return None
    start = buffers[2].address - table.start
    if not 0 <= start <= table.size - buffers[2].size:
        return None
    import numpy as np

    wide = str(images.type).startswith("large")
    offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32)
    return cast(list[int], (start + offsets[images.offset :][: len(images)].astype(int)).tolist())


def _samples(
    content: Any,
    images: Any,
    columns: Columns,
    table: Table,
    row: int,
    offset: int,
    places: list[int] | None,
) -> Iterator[Sample]:
    targets = _targets(content, columns, table, row)
    names = _names(content, columns, row, targets, table)
    for number, image in enumerate(images):
        view = memoryview(image.as_buffer()) if image.is_valid else memoryview(b"")
        if view.nbytes > LARGEST:
            raise DataError(
                f"row {row + number}: {view.nbytes:,} bytes; valid: at most {LARGEST:,}"
            )
        yield Sample(
            name=names[number].encode(errors="replace"),
            offset=offset if places is None else places[number],
            size=view.nbytes,
            digest=content_digest(view),
            target=targets[number],
        )
        offset += view.nbytes


def _names(
    content: Any, columns: Columns, row: int, targets: Sequence[Target], table: Table
) -> list[str]:
    """Names of the rows: those in the file, below the class if needed, if all differ.

    Else their numbers.
    """
    arrow, _ = _pyarrow()
    column, found = content.column(columns.image), None
    kind = column.type
    if _is_struct(column) and any(kind.field(i).name == "path" for i in range(kind.num_fields)):
        found = arrow.compute.struct_field(column, "path").to_pylist()
    elif columns.name is not None:
        found = content.column(columns.name).to_pylist()
    if found is not None and all(found):
        classes = table.classes.get(columns.label[0], ()) if columns.label else ()
        below = [
            f"{_class(each, classes)}/{name}" for each, name in zip(targets, found, strict=True)
        ]
        for names in (found, below):
            if len(set(names)) == len(names):
                return cast(list[str], names)
    return [str(row + number) for number in range(content.num_rows)]


def _class(target: Target, classes: Sequence[str]) -> object:
    return classes[target] if isinstance(target, int) and target < len(classes) else target


def _targets(content: Any, columns: Columns, table: Table, row: int) -> list[Target]:
    rows = content.num_rows
    if not columns.label:
        return [None] * rows
    cells = [content.column(name).to_pylist() for name in columns.label]
    if len(cells) > 1:
        return [tuple(map(float, values)) for values in zip(*cells, strict=True)]
    name = columns.label[0]
    kind = "label" if name in table.classes else _kind(name, cells[0])
    return [
        None if cell is None else target_of(f"row {row + number}", {kind: _plain(cell)})
        for number, cell in enumerate(cells[0])
    ]


def _plain(cell: Any) -> Any:
    return list(map(str, cell)) if isinstance(cell, list) else cell


def _kind(name: str, cells: Sequence[Any]) -> str:
    """Use of a column of labels: by its name, or by the type of its first value."""
    if name == "value" or name.startswith("value:"):
        return "value"
    first = next((cell for cell in cells if cell is not None), None)
    return "labels" if isinstance(first, list) else "value" if isinstance(first, float) else "label"


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("parquet", "Parquet and Arrow files") from None
    return pyarrow, pyarrow.parquet
