"""Shards and tables that `--data` names: files, splits, columns and the place of the index."""

import glob
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.shards.index import HEADER, Index, shard_names
from vitlab.data.shards.samples import Files
from vitlab.data.shards.store import (
    ARROW,
    PARQUET,
    SUFFIXES,
    TAR,
    Store,
    StoreError,
    expand_braces,
    is_address,
    may_be_shards,
)
from vitlab.errors import DataError
from vitlab.images.find import SUFFIXES as IMAGE_SUFFIXES
from vitlab.images.find import is_folder, visible
from vitlab.io.files import locked, writable_home

TRAIN = "train"
TEST = ("test", "val", "valid", "validation")
"""Names of the test split; the first that exists is used."""
Watch = Callable[[int, int], None]
"""Callback with the number of finished files and their total."""
USES = ("image", "label")
"""Columns that an address may name, behind a `#`."""
INDEX = ".index"
CLASSES = "classes.txt"
"""File beside shards with the names of the classes that they give by number."""
PLACES = ("", "data/", *(f"{split}/" for split in (TRAIN, *TEST)))
"""Folders below a named one that are searched."""
SPLIT = re.compile(rf"(?:^|[/_-])({'|'.join((TRAIN, *TEST))})(?=[/._-])")
MOST_CLASSES = 1 << 24
"""Bytes of a file with names of classes."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Files of one dataset in shards or tables."""

    spec: str
    files: Files
    beside: Path | None
    """Place of the index beside the files; None: they are in a store."""
    unused: tuple[str, ...] = ()
    """Names of splits that are not used."""

    @property
    def home(self) -> Path:
        """Place of the index in the user's folder for data."""
        content = repr((self.spec, sorted(self.files.columns.items())))
        digest = hashlib.blake2b(content.encode(errors="surrogateescape"), digest_size=8)
        name = re.sub(r"\W+", "-", self.spec.rpartition("/")[2])[:40]
        return writable_home("data") / "indexes" / f"{name}-{digest.hexdigest()}{INDEX}"

    @property
    def written(self) -> Path | None:
        """An index that exists, or None."""
        places = [self.beside] if self.beside is not None else []
        return next((place for place in [*places, self.home] if (place / HEADER).is_file()), None)


def find_layout(spec: str, columns: Mapping[str, str] | None = None) -> Layout | None:
    """Files that an address or a path stands for; None: no shards or tables."""
    if columns is None:
        return find_layout(*parse_columns(spec))
    if not is_address(spec):
        spec = os.path.abspath(os.path.expanduser(spec))
        if os.path.isdir(spec):
            return _folder(spec, columns)
        if os.path.exists(spec) and not spec.endswith((*PARQUET, *ARROW)):
            return None
    elif not spec.endswith(SUFFIXES):
        return _folder(spec, columns)
    return _pattern(spec, columns) if spec.endswith(SUFFIXES) else None


def parse_columns(spec: str) -> tuple[str, dict[str, str]]:
    """A path or an address, and the columns named behind a `#`."""
    path, mark, fragment = spec.rpartition("#")
    if not (mark and "=" in fragment and "/" not in fragment):
        return spec, {}
    found = {}
    for part in fragment.split(","):
        use, _, name = part.partition("=")
        if use not in USES or not name:
            raise DataError(f"#{fragment}: {part!r}; valid: #image=COLUMN,label=COLUMN")
        found[use] = name
    return path, found


def _folder(root: str, columns: Mapping[str, str]) -> Layout | None:
    """Shards or tables directly in a folder, in `data` below it, or in folders of splits."""
    store = Store(root)
    if not store.remote and not _without_classes(Path(root)):
        return None
    names = [name for place in PLACES for name in store.glob(f"{place}*", SUFFIXES)]
    if not names:
        if store.remote:
            raise DataError(f"{root}: no shards or tables; valid endings: {' '.join(SUFFIXES)}")
        return None
    return _layout(
        root, store, names, columns, None if store.remote else Path(root, f"vitlab{INDEX}")
    )


def _without_classes(root: Path) -> bool:
    """True if a folder holds no images, and no folders but those of splits, which hold none."""
    folders = []
    for entry in visible(os.fspath(root)):
        if is_folder(entry):
            folders.append(entry.name)
        elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
            return False
    inner = {name for name in folders if not name.endswith(INDEX)}
    if not inner <= {place.rstrip("/") for place in PLACES}:
        return False
    return not any(is_folder(entry) for name in inner for entry in visible(str(root / name)))


def _pattern(spec: str, columns: Mapping[str, str]) -> Layout | None:
    """Files of a pattern with `{000..127}`, `{a,b}`, `*` or `?`, or a single file."""
    magic = re.search(r"[{*?\[]", spec)
    root = spec[: spec.rindex("/", 0, magic.start() if magic else None)]
    store, inner = Store(root), spec[len(root) + 1 :]
    names: list[str] = []
    for name in expand_braces(inner):
        names += store.glob(name, SUFFIXES) if glob.has_magic(name) else [name]
    if not names:
        raise DataError(f"{spec}: the pattern fits no file")
    if not store.remote and not any(os.path.exists(store.path(name)) for name in names):
        raise DataError(f"{spec}: no such file{'s' * (len(names) > 1)}")
    title = re.sub(r"[{}*?\[\]/]", "", inner) if magic else inner
    beside = None if store.remote else Path(root, f"{title}{INDEX}")
    return _layout(spec, store, names, columns, beside)


def _layout(
    spec: str, store: Store, names: Sequence[str], columns: Mapping[str, str], beside: Path | None
) -> Layout:
    kinds = {next(suffix for suffix in SUFFIXES if name.endswith(suffix)) for name in names}
    if len(kinds) > 1:
        raise DataError(f"{spec}: files of {' and '.join(sorted(kinds))}; valid: one kind")
    if columns and kinds == {TAR}:
        raise DataError(f"{spec}: tar files have no columns {', '.join(columns.values())}")
    splits, unused = _splits(sorted(dict.fromkeys(names)))
    classes = _classes(store) if kinds == {TAR} else ()
    files = Files(store=store, splits=splits, columns=columns, classes=classes)
    return Layout(spec=spec, files=files, beside=beside, unused=unused)


def _splits(names: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Training and test files by their names, and splits that are not used."""
    found: dict[str, list[str]] = {}
    for name in names:
        match = SPLIT.search(name)
        found.setdefault(match[1] if match else "", []).append(name)
    if TRAIN not in found:
        return {TRAIN: tuple(names)}, ()
    tests = [split for split in TEST if split in found]
    used = {split: tuple(found[split]) for split in (TRAIN, *tests[:1])}
    return used, tuple(split or "other files" for split in found if split not in used)


def _classes(store: Store) -> tuple[str, ...]:
    """Names of classes beside shards; none if there is no such file."""
    try:
        size = store.size(CLASSES)
        if size > MOST_CLASSES:
            raise DataError(
                f"{store.path(CLASSES)}: {size:,} bytes; valid: at most {MOST_CLASSES:,}"
            )
        if store.remote:
            text = store.read(CLASSES, 0, size).decode()
        else:
            text = Path(store.path(CLASSES)).read_text(encoding="utf-8")
    except StoreError:
        return ()
    except UnicodeDecodeError as error:
        raise DataError(f"{store.path(CLASSES)}: not UTF-8 text") from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())


# The index of a layout.


def open_index(layout: Layout, watch: Watch = lambda done, total: None) -> Index:
    """The index of files, written first if they are on a disk and have none."""
    place = layout.written
    if place is None:
        if layout.files.store.remote:
            raise DataError(
                f"{layout.spec} has no index; vitlab data index '{layout.spec}' writes it, for "
                "which every file is read once"
            )
        place = write_index(layout, watch=watch)
    index = Index(place, layout.files.store)
    _check_files(layout, index)
    return index


def index_at(spec: str) -> Index | None:
    """Index of the shards or tables that an argument stands for; None: it stands for others."""
    layout = find_layout(spec) if may_be_shards(spec) else None
    return None if layout is None else open_index(layout)


def write_index(
    layout: Layout,
    *,
    force: bool = False,
    watch: Watch = lambda done, total: None,
) -> Path:
    """Write the index beside the files if possible, else in the user's folder for data."""
    places = [layout.home] if layout.beside is None else [layout.beside, layout.home]
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(place.parent, os.W_OK | os.X_OK):
                continue
        except OSError:
            continue
        with locked(_lock(layout), lambda: None):
            if force or not (place / HEADER).is_file():
                from vitlab.data.shards.build import build_index

                build_index(layout.files, place, watch)
        return place
    raise DataError(f"{places[-1]} cannot be written; set VITLAB_DATA to a folder that can")


def _lock(layout: Layout) -> Path:
    """Lock file of an index; not among the files of the user."""
    lock = layout.home.with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    return lock


def _check_files(layout: Layout, index: Index) -> None:
    """Raise for files that the index does not have; missing ones are found when they are read."""
    new = sorted(set(layout.files.names) - set(index.header.files))
    columns = {**layout.files.columns}
    if new or any(index.header.columns.get(use) != name for use, name in columns.items()):
        found = f"lacks {shard_names(new)}" if new else "is of other columns"
        raise DataError(
            f"{index.folder} {found}; write it anew: vitlab data index '{layout.spec}' --force"
        )
