"""Datasets of the library `datasets`, from a folder or the Hugging Face hub; needs its extra.

The library downloads them and writes Arrow files into its cache; these are read by number like
other tables, without the library.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from vitlab.data.shards.layout import TEST, TRAIN, Layout, parse_columns
from vitlab.data.shards.samples import Files
from vitlab.data.shards.store import Store
from vitlab.errors import DataError, MissingExtra, one_line

PREFIX = "hf:"


def hub_layout(spec: str, *, download: bool = False) -> Layout:
    """Arrow files of `hf:FOLDER` or `hf:NAME`; names are fetched only with `download`."""
    name, columns = parse_columns(spec.removeprefix(PREFIX))
    found = _load(name, download)
    if TRAIN not in found:
        listed = ", ".join(found)
        raise DataError(f"{spec}: splits {listed}; valid: a dataset with a split 'train'")
    tests = [split for split in TEST if split in found]
    paths = {split: _files(found[split], spec) for split in (TRAIN, *tests[:1])}
    root = os.path.commonpath([os.path.dirname(path) for names in paths.values() for path in names])
    splits = {
        split: tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in names)
        for split, names in paths.items()
    }
    unused = tuple(split for split in found if split not in splits)
    files = Files(store=Store(root), splits=splits, columns=columns)
    return Layout(spec=spec, files=files, beside=None, unused=unused)


def _load(name: str, download: bool) -> dict[str, Any]:
    """Splits of a dataset."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hf:") from None
    folder = Path(name).expanduser()
    datasets.disable_progress_bars()
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            found = datasets.load_from_disk(str(folder))
        elif folder.exists():
            found = datasets.load_dataset(str(folder))
        else:
            with nullcontext() if download else _offline():
                found = datasets.load_dataset(name)
    except Exception as error:  # the library's errors share no class of their own
        advice = "" if folder.exists() or download else "; --download fetches it from the hub"
        raise DataError(f"{PREFIX}{name}: {one_line(error)}{advice}") from error
    return dict(found) if isinstance(found, dict) else {TRAIN: found}


@contextmanager
def _offline() -> Iterator[None]:
    """Keep the library, which looks for names on the hub first, off the network."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _files(split: Any, spec: str) -> list[str]:
    """Arrow files of a split, which must hold all of it in its order."""
    names = [str(each["filename"]) for each in split.cache_files]
    if not names or getattr(split, "_indices", None) is not None:
        raise DataError(f"{spec}: a selection of rows; valid: a dataset as it was stored")
    return names
