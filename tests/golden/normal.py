"""Reduce outputs and files to what must not change: no times, paths, commands or versions."""

import csv
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOLATILE = frozenset(
    {
        *("time", "times", "date", "seconds", "minutes", "minutes_before", "images_per_second"),
        *("milliseconds", "latency", "speed", "throughput", "memory", "peak_memory", "mtime"),
        *("command", "commit", "version", "vitlab", "torch", "python", "machine", "checksum"),
        *("sha256", "bytes"),  # of files whose metadata holds times
    }
)
"""Keys of JSON objects whose values differ between two runs of the same code."""

LONG = 100
"""Lists of more numbers than this are stored as a digest."""

_AMOUNT = r"[\d.,]+\s*(?:e-?\d+)?\s*"
_DURATION = re.compile(
    rf"{_AMOUNT}(?:ms|s|sec|seconds?|min|minutes?|h|hours?|images/s|images a second)\b"
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?)?")
_COMMIT = re.compile(r"\b[0-9a-f]{40}\b")
_NUMBER = re.compile(r"[-+−]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


def digest(content: bytes) -> str:
    """The first 16 digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def clean(value: Any, folders: dict[str, str], drop: frozenset[str] = VOLATILE) -> Any:
    """A JSON value without volatile keys and absolute paths, long lists of numbers as digests."""
    if isinstance(value, dict):
        kept = {key: clean(item, folders, drop) for key, item in value.items() if key not in drop}
        return {clean_text(key, folders): item for key, item in kept.items()}
    if isinstance(value, list):
        if len(value) > LONG and all(isinstance(item, int | float) for item in value):
            return {"numbers": len(value), "digest": digest(json.dumps(value).encode())}
        return [clean(item, folders, drop) for item in value]
    return clean_text(value, folders) if isinstance(value, str) else value


def clean_text(text: str, folders: dict[str, str]) -> str:
    """Text with the names of folders, commits, durations and dates replaced."""
    for folder, name in folders.items():
        text = text.replace(folder, name)
    text = _COMMIT.sub("<commit>", text)
    return _DATE.sub("<date>", _DURATION.sub("<duration>", text))


def lines(text: str, folders: dict[str, str]) -> list[str]:
    """Printed lines, cleaned, without spaces at their ends and empty lines."""
    found = (clean_text(line, folders).rstrip() for line in re.split(r"[\r\n]+", text))
    return [line for line in found if line]


def json_lines(text: str, folders: dict[str, str]) -> list[Any]:
    return [clean(json.loads(line), folders) for line in text.splitlines()]


def csv_rows(text: str, folders: dict[str, str]) -> list[list[str]]:
    """Rows without volatile columns."""
    rows = list(csv.reader(text.splitlines()))
    kept = [i for i, name in enumerate(rows[0]) if name not in VOLATILE] if rows else []
    return [[clean_text(row[i], folders) for i in kept if i < len(row)] for row in rows]


class _Text(HTMLParser):
    """Collects the text between tags, without styles and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.hidden and data.strip():
            self.found.append(" ".join(data.split()))


def page(text: str, folders: dict[str, str]) -> dict[str, Any]:
    """The numbers of an HTML page in order, and its words."""
    parser = _Text()
    parser.feed(text)
    found = [clean_text(line, folders) for line in parser.found]
    return {
        "numbers": [number for line in found for number in _NUMBER.findall(line)],
        "text": found,
    }


def tensors(path: Path, folders: dict[str, str]) -> dict[str, Any]:
    """Type, shape and digest of every tensor in a weight file; a JSON text in it is parsed."""
    if path.suffix == ".npz":
        return _arrays(path, folders)
    if path.suffix == ".safetensors":
        return _safetensors(path.read_bytes())
    import torch

    found = torch.load(path, map_location="cpu", weights_only=True)
    return {
        name: _described(str(tensor.dtype), tensor.shape, tensor.contiguous().numpy().tobytes())
        for name, tensor in found.items()
    }


def _safetensors(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    header.pop("__metadata__", None)
    return {
        name: _described(entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in sorted(header.items())
    }


def _arrays(path: Path, folders: dict[str, str]) -> dict[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in sorted(file.files)}
    return {
        name: clean(json.loads(str(array)), folders)
        if array.dtype.kind == "U" and array.ndim == 0
        else _described(str(array.dtype), array.shape, array.tobytes())
        for name, array in arrays.items()
    }


def _described(kind: str, shape: Any, content: bytes) -> str:
    return f"{kind} {list(shape)} {digest(content)}"


def pixels(path: Path) -> str:
    """Mode, size and digest of an image file."""
    from PIL import Image

    with Image.open(path) as image:
        return f"{image.mode} {list(image.size)} {digest(image.tobytes())}"


def read(path: Path, folders: dict[str, str]) -> Any:
    """What one file holds, as far as it must not change; the size of a file of unknown kind."""
    kind = path.suffix
    if kind in (".safetensors", ".npz", ".pth", ".pt", ".bin"):
        return tensors(path, folders)
    if kind in (".png", ".jpg"):
        return {"pixels": pixels(path)}
    if kind in (".onnx", ".pt2", ".svg"):
        return "present"
    text = path.read_text(encoding="utf-8")
    if kind == ".json":
        return clean(json.loads(text), folders)
    if kind == ".jsonl":
        return json_lines(text, folders)
    if kind == ".csv":
        return csv_rows(text, folders)
    if kind == ".html":
        return page(text, folders)
    return {"text": lines(text, folders)}
