"""What lies in a bundle's folder, found and read without torch."""

from pathlib import Path
from typing import Any

from vitlab.errors import WeightsError
from vitlab.weights.reading import read_json

FORMAT_VERSION = 1
CONFIG, WEIGHTS, ONNX = "config.json", "model.safetensors", "model.onnx"


def is_bundle(folder: Path) -> bool:
    """Whether a folder holds a bundle, by what its `config.json` says."""
    path = folder / CONFIG
    return path.is_file() and "format_version" in read_json(path)


def find_bundle(path: Path) -> Path:
    """The bundle of a run, or the path itself."""
    return path / "bundle" if (path / "bundle").is_dir() else path


def bundle_files(folder: Path) -> tuple[Path, ...]:
    """The files that make up a bundle, whatever else lies beside them."""
    files = (folder / name for name in (CONFIG, WEIGHTS, ONNX))
    return tuple(file for file in files if file.is_file())


def read_bundle_config(folder: Path) -> dict[str, Any]:
    """The content of a bundle's `config.json`."""
    content: dict[str, Any] = read_json(folder / CONFIG)
    if content.get("format_version") != FORMAT_VERSION:
        raise WeightsError(
            f"{folder / CONFIG}: format_version {content.get('format_version')!r}; "
            f"valid: {FORMAT_VERSION}"
        )
    return content
