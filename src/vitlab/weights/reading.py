"""Read files that may be damaged or missing, with one clear line about the fault; no torch."""

import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError, one_line

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt")
"""Suffixes of weight files."""
Value = TypeVar("Value")


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


# Values of config files: an invalid one raises with its name and the valid choices.


def integer(name: str, value: Any) -> int:
    """Check an integer that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise WeightsError(f"{name} {value!r}; valid: a whole number, at least 0")
    return value


def fraction(name: str, value: Any) -> float:
    """Check a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise WeightsError(f"{name} {value!r}; valid: a number, at least 0")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise WeightsError(f"{name} {value!r}; valid: true, false")
    return value


def size(name: str, value: Any) -> int | tuple[int, int]:
    """Check a size: one number for a square, or height and width."""
    if isinstance(value, list | tuple) and len(value) == 2:
        height, width = (integer(name, side) for side in value)
        return height if height == width else (height, width)
    if isinstance(value, list | tuple | dict):
        raise WeightsError(f"{name} {value!r}; valid: a whole number, or [height, width]")
    return integer(name, value)


def one_of(name: str, value: Any, valid: Iterable[Value]) -> Value:
    """Check that the value is one of these, also in type: 0 is not False."""
    for choice in valid:
        if type(choice) is type(value) and choice == value:
            return choice
    shown = ", ".join(repr(choice) for choice in valid)
    raise WeightsError(f"{name} {value!r} is not supported; valid: {shown}")


def section(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Object under a key of a config file; empty if there is none."""
    found = content.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise WeightsError(f"{key} {str(found)[:60]!r}; valid: an object")
    return found
