"""Plain weights as ONNX Runtime reads them: exported once, and kept in the user's cache folder.

Imports no torch by itself: what is kept already is used without.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from vitlab import __version__
from vitlab.errors import VitlabError
from vitlab.io.cache import homes, writable_home
from vitlab.io.download import file_digest
from vitlab.io.files import locked, write_files
from vitlab.machine.cores import may_have_accelerator, onnx_wanted
from vitlab.weights.reading import SUFFIXES

RUNTIMES = {"auto": "onnxruntime", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""What must be installed for each engine that reads ONNX."""
KIND = "exports"
GRAPH = 4
"""Grows with every change of the graphs that are written, so that older ones are not used."""
MANY = 1000
"""Images from which on the seconds of an export pay."""
NOTE = ".assumed.txt"
"""Suffix of the file beside an export that repeats the warning of `load_weights`."""
BESIDE = ("config.json", "preprocessor_config.json")
"""Files that may say how weights are read."""

log = logging.getLogger(__name__)


def kept_export(
    model: str | os.PathLike[str], *, engine: str, images: Callable[[int], int | None]
) -> Path | None:
    """The ONNX file of a weight file, made now if it pays; None: use the weights themselves.

    An engine that was asked for by name is worth an export at once. VITLAB_ONNX=0: never.
    `images` counts them, up to as many as it is given.
    """
    path = Path(model)
    if not (path.suffix in SUFFIXES and path.is_file() and _possible(engine)):
        return None
    kept = _kept()
    pays = engine != "auto" or (images(MANY) or 0) >= MANY
    if not (kept or pays):
        return None
    name = f"{_key(path)}.onnx"
    if name in kept:
        note = kept[name].with_suffix(NOTE)
        if note.is_file():
            log.warning("%s", note.read_text(encoding="utf-8"))
        return kept[name]
    return _export(path, name) if pays else None


def _kept() -> dict[str, Path]:
    """What was exported before, by name; nothing where no folder can be looked into."""
    found: dict[str, Path] = {}
    try:
        for home in reversed(homes(KIND)):
            if os.path.isdir(home):
                found |= {name: home / name for name in os.listdir(home) if name.endswith(".onnx")}
    except (OSError, VitlabError):
        pass
    return found


def _possible(engine: str) -> bool:
    runtime = RUNTIMES.get(engine)
    if runtime is None or find_spec(runtime) is None or not onnx_wanted():
        return False
    return engine != "auto" or not may_have_accelerator()


def _export(path: Path, name: str) -> Path | None:
    from vitlab.jobs.export import export, exportable
    from vitlab.weights.load import load_weights

    if not exportable(path):
        return None
    source = load_weights(path).source
    source.require_head()  # what cannot predict is not exported first
    source.require_preprocessing()
    try:
        place = writable_home(KIND) / name
        with locked(place.with_suffix(".lock"), lambda: log.warning("waiting for another export")):
            if not place.is_file():
                log.warning("%s: exported once for ONNX Runtime, to %s", path, place)
                if source.warning is not None:
                    write_files(place.parent, {place.stem + NOTE: source.warning.encode()})
                export(path, output=place)
    except Exception as error:  # torch can do what a runtime cannot
        log.warning("%s cannot be exported (%s)", path, " ".join(str(error).split())[:200])
        return None
    return place


def _key(path: Path) -> str:
    """Of the weights, of all that may say how to read them, and of what exports them."""
    exporter = f"{__version__} {GRAPH} {version('torch')}"
    told = [exporter, path.name, file_digest(path, "sha256")]
    for name in BESIDE:
        if (path.parent / name).is_file():
            told += [name, file_digest(path.parent / name, "sha256")]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:32]
