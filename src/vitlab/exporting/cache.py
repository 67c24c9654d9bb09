"""Exports of plain weight files, kept in the user's cache folder for the next prediction.

An export is announced in one line, and the folder is bounded in size: exports that were used
longest ago are deleted. `VITLAB_ONNX=0` switches it off. Imports no torch by itself: a kept file
is used without it.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from vitlab import __version__
from vitlab.errors import VitlabError
from vitlab.io.files import file_digest, homes, locked, writable_home, write_files
from vitlab.machine.device import may_have_accelerator, onnx_wanted
from vitlab.weights.reading import SUFFIXES

RUNTIMES = {"auto": "onnxruntime", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Package that must be installed for each engine that reads ONNX."""
KIND = "exports"
GRAPH = 4
"""Version of the written graphs: older ones are not used."""
MANY = 1000
"""Number of images from which an export saves more time than it takes."""
MOST_BYTES = 4 << 30
"""Bytes of all kept exports together; the newest one stays, whatever its size."""
NOTE = ".assumed.txt"
"""Suffix of the file beside an export that repeats the warning of `load_weights`."""
BESIDE = ("config.json", "preprocessor_config.json")
"""Files beside the weights that may decide how they are read."""

log = logging.getLogger(__name__)


def cached_export(
    weights: str | os.PathLike[str],
    *,
    engine: str,
    images: Callable[[int], int | None],
    export: Callable[[Path, Path], object],
) -> Path | None:
    """ONNX file of a weight file, written now if it saves time; None: use the weights themselves.

    An engine chosen by name is reason enough for an export. `images` counts the images, up to its
    argument; `export` writes a weight file to an ONNX file.
    """
    path = Path(weights)
    if not (path.suffix in SUFFIXES and path.is_file() and _possible(engine)):
        return None
    kept = _kept()
    pays = engine != "auto" or (images(MANY) or 0) >= MANY
    if not (kept or pays):
        return None
    name = f"{_key(path)}.onnx"
    if name in kept:
        _note_use(kept[name])
        note = kept[name].with_suffix(NOTE)
        if note.is_file():
            log.warning("%s", note.read_text(encoding="utf-8"))
        return kept[name]
    return _export(path, name, export) if pays else None


def _kept() -> dict[str, Path]:
    """Kept exports by name; empty if no folder can be read."""
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


def _export(path: Path, name: str, export: Callable[[Path, Path], object]) -> Path | None:
    from vitlab.exporting.onnx import exportable
    from vitlab.weights.load import load_weights

    if not exportable(path):
        return None
    source = load_weights(path).source
    source.require_head()  # before the export: without them it could not predict
    source.require_preprocessing()
    try:
        place = writable_home(KIND) / name
        with locked(place.with_suffix(".lock"), lambda: log.warning("waiting for another export")):
            if not place.is_file():
                log.warning("%s: exported once for ONNX Runtime, to %s", path, place)
                if source.warning is not None:
                    write_files(place.parent, {place.stem + NOTE: source.warning.encode()})
                export(path, place)
                _make_room(place)
    except Exception as error:  # torch can compute models that a runtime cannot
        log.warning("%s cannot be exported (%s)", path, " ".join(str(error).split())[:200])
        return None
    return place


def _note_use(file: Path) -> None:
    """Set the time of the last use, which some file systems do not keep by themselves."""
    with suppress(OSError):
        os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))


def _make_room(newest: Path) -> None:
    """Delete the exports used longest ago until all of them together fit `MOST_BYTES`."""
    known = {file: file.stat() for file in newest.parent.glob("*.onnx") if file != newest}
    total = newest.stat().st_size + sum(stat.st_size for stat in known.values())
    for file in sorted(known, key=lambda file: known[file].st_atime_ns):
        if total <= MOST_BYTES:
            return
        for part in (file, file.with_suffix(NOTE)):
            part.unlink(missing_ok=True)
        total -= known[file].st_size


def _key(path: Path) -> str:
    """Digest of the weights, of files that decide how to read them, and of the exporter."""
    exporter = f"{__version__} {GRAPH} {version('torch')}"
    content = [exporter, path.name, file_digest(path, "sha256")]
    for name in BESIDE:
        if (path.parent / name).is_file():
            content += [name, file_digest(path.parent / name, "sha256")]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]
