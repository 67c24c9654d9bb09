"""Read files that may be damaged or missing, with one clear line about the fault; no torch."""

import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError, one_line

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt")
"""Suffixes of weight files."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix this package's errors with the file that they are about."""
    try:
        yield
    except WeightsError as error:
        text = str(error)
        if text.startswith(f"{path}: "):
            raise
        raise WeightsError(f"{path}: {text}") from error.__cause__


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert any error of the readers on a damaged file to one line about the file."""
    try:
        with naming(path):
            yield
    except WeightsError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise WeightsError(f"{path}: truncated or damaged ({one_line(error)})") from error
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror or error})") from error
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: holds Python objects besides tensors; refused, since reading them could "
            f"run code"
        ) from error
    except (ValueError, RuntimeError, KeyError, TypeError, struct.error) as error:
        raise WeightsError(f"{path}: not a readable weight file ({one_line(error)})") from error


def read_json(path: Path, limit: int = 16 << 20) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    with reading(path):
        if path.stat().st_size > limit:
            raise WeightsError(f"{path.stat().st_size} bytes; valid for JSON: at most {limit}")
        try:
            content = parse_json(path.read_bytes())
        except ConfigError as error:
            raise WeightsError(str(error)) from error
        if not isinstance(content, dict):
            raise WeightsError(f"holds a {type(content).__name__}, not a JSON object")
        return content
