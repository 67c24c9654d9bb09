"""Files of a bundle: found, read and compared with their digests, without torch."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from vitlab.errors import DataError, WeightsError
from vitlab.io.download import check_file, file_digest
from vitlab.io.files import write_json
from vitlab.task import Task
from vitlab.weights.reading import read_json

FORMAT_VERSION = 1
CONFIG, WEIGHTS, ONNX = "config.json", "model.safetensors", "model.onnx"
FILES = "files"
"""Key of `config.json`: size and SHA-256 of the other files; absent in older bundles."""

CHECKED = ("model", "preprocessing", "task")
"""Keys of `config.json` that must equal those in the metadata of the other files; labels may be
renamed.
"""


def is_bundle(folder: Path) -> bool:
    """True if a folder holds a bundle, by the content of its `config.json`."""
    path = folder / CONFIG
    return path.is_file() and "format_version" in read_json(path)


def find_bundle(path: Path) -> Path:
    """Bundle of a run, or the path itself."""
    return path / "bundle" if (path / "bundle").is_dir() else path


def bundle_files(folder: Path) -> tuple[Path, ...]:
    """Files of a bundle, without other files beside them."""
    files = (folder / name for name in (CONFIG, WEIGHTS, ONNX))
    return tuple(file for file in files if file.is_file())


def read_bundle_config(folder: Path) -> dict[str, Any]:
    """Content of a bundle's `config.json`."""
    content: dict[str, Any] = read_json(folder / CONFIG)
    if content.get("format_version") != FORMAT_VERSION:
        raise WeightsError(
            f"{folder / CONFIG}: format_version {content.get('format_version')!r}; "
            f"valid: {FORMAT_VERSION}"
        )
    return checked_content(content, str(folder / CONFIG))


def checked_content(content: Any, name: str) -> dict[str, Any]:
    """Content of `config.json`, with every value of the right type and defaults filled in."""
    if not isinstance(content, dict):
        raise WeightsError(f"{name}: found {_shown(content)}; valid: an object")
    found: dict[str, Any] = {**content}
    for key, (valid, is_valid, default) in CONTENT.items():
        if found.get(key) is None:
            found[key] = default
        elif not is_valid(found[key]):
            raise WeightsError(f"{name}: {key} is {_shown(found[key])}; valid: {valid}")
    if not isinstance(found.get("model"), dict):
        raise WeightsError(f"{name}: no model in it; valid: what `vitlab train` writes")
    classes = found["model"].get("classes")
    if found["labels"] is not None and isinstance(classes, int) and classes != len(found["labels"]):
        raise WeightsError(f"{name}: {len(found['labels'])} labels for {classes} classes")
    return found


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_files(value: Any) -> bool:
    return _is_mapping(value) and all(
        _is_mapping(file)
        and type(file.get("bytes")) is int
        and isinstance(file.get("sha256"), str)
        and re.fullmatch("[0-9a-f]{64}", file["sha256"])
        for file in value.values()
    )


CONTENT: dict[str, tuple[str, Callable[[Any], object], Any]] = {
    "architecture": ("the name of an architecture", lambda value: isinstance(value, str), "vit"),
    "preprocessing": ("an object", _is_mapping, None),
    "labels": ("a list of names", _is_names, None),
    "task": (", ".join(get_args(Task)), lambda value: value in get_args(Task), None),
    "metrics": ("an object", _is_mapping, {}),
    "provenance": ("an object", _is_mapping, {}),
    FILES: ("an object of file names, each with bytes and sha256", _is_files, {}),
}
"""Keys of `config.json`: their valid values as text, a check, and a default."""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def described_file(path: Path) -> dict[str, Any]:
    """Size and digest of a file, as `config.json` holds them."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path, "sha256")}


def record_file(folder: Path, name: str) -> None:
    """Store size and digest of a file that was written into a bundle, if it has digests."""
    content: dict[str, Any] = read_json(folder / CONFIG)
    if not content.get(FILES):  # an older bundle
        return
    files = {**content[FILES], name: described_file(folder / name)}
    write_json(folder / CONFIG, content | {FILES: files})


def check_bundle_file(
    folder: Path, name: str, content: Mapping[str, Any], *, by_size: bool = False
) -> str | None:
    """Digest of a file of a bundle; raises WeightsError if size or content changed since creation.

    With `by_size` the content is not read. None: the bundle is an older one without digests.
    """
    if not content[FILES]:
        return None
    known = content[FILES].get(name)
    if known is None:
        raise WeightsError(
            f"{folder / CONFIG}: no digest of {name}; valid: digests of all files, or of none "
            f"(an older bundle)"
        )
    checksum = None if by_size else f"sha256:{known['sha256']}"
    try:
        check_file(folder / name, size=known["bytes"], checksum=checksum)
    except DataError as error:
        raise WeightsError(
            f"{folder}: {error}, which {CONFIG} says: the file was damaged or replaced"
        ) from error
    except OSError as error:
        raise WeightsError(f"{folder / name}: cannot be read ({error.strerror})") from error
    return str(known["sha256"])


def verify_bundle(folder: Path) -> tuple[str, ...]:
    """Compare every file of a bundle with its digest; return the names of those that have one."""
    content = read_bundle_config(folder)
    names = [WEIGHTS, *([ONNX] if (folder / ONNX).is_file() else [])]
    return tuple(name for name in names if check_bundle_file(folder, name, content))


def check_copy(
    copy: Mapping[str, Any], content: Mapping[str, Any], keys: Iterable[str], name: str
) -> None:
    """Raise if `config.json` differs in these keys from its copy in the metadata of a file."""
    for key in keys:
        if None not in (copy.get(key), content[key]) and copy[key] != content[key]:
            raise WeightsError(
                f"{name}: {key} differs from the copy in {WEIGHTS}: {CONFIG} was changed"
            )
