"""Preprocessing that the user states for weights: by name, by file, or by its numbers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from vitlab.errors import ConfigError, InputError, PreprocessingUnknown, UnknownName, VitlabError
from vitlab.images.preprocessing import Interpolation, Preprocessing
from vitlab.weights.adapt import adapt_preprocessing
from vitlab.weights.reading import read_json
from vitlab.weights.resolve import prepared
from vitlab.weights.sidecar import preprocessing_in
from vitlab.weights.source import WeightSource

Stated = Preprocessing | str | os.PathLike[str] | Mapping[str, Any]
"""A preprocessing, `imagenet`, `half`, a JSON file, or some of FIELDS, with `base` as one of those.

`imagenet` resizes the shorter side to 256 / 224 of the size and crops (bicubic, ImageNet's mean and
deviation); `half` resizes to the size without cropping (bilinear, mean and deviation 0.5).
"""
NAMES = {"imagenet": "deit", "half": "google"}
"""Publisher whose preprocessing each name stands for."""
FIELDS = ("mean", "std", "interpolation", "crop")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A checked statement, before the size and the channels of the model are known."""

    base: Preprocessing | None = None
    """Replaces the preprocessing of the weights; None: fields change it."""
    fields: dict[str, Any] = field(default_factory=dict)

    def on(
        self, known: Preprocessing | None, *, size: tuple[int, int], channels: int, name: str
    ) -> Preprocessing:
        """Preprocessing of a model; `known` is that of its weights, called `name` in errors."""
        values: dict[str, Any] = {
            key: _repeated(key, value, channels) if key in ("mean", "std") else value
            for key, value in self.fields.items()
        }
        base = adapt_preprocessing(self.base or known, size, channels)
        if base is not None:
            return replace(base, **values)
        if not {"mean", "std"} <= values.keys():
            missing = next(key for key in ("mean", "std") if key not in values)
            raise PreprocessingUnknown(
                f"{name}: nothing says how images must be prepared for these weights, and "
                f"{missing} is missing; valid: mean and std, or a base: imagenet, half or a file"
            )
        return Preprocessing(size=size, **values)


def read_stated(given: Stated) -> Statement:
    """Check a statement; ConfigError or InputError if it cannot be one."""
    if isinstance(given, Preprocessing):
        return Statement(base=given)
    if not isinstance(given, Mapping):
        return _named(given)
    for key in given:
        if key not in ("base", *FIELDS):
            raise UnknownName("field of preprocessing", str(key), ("base", *FIELDS))
    base = given.get("base")
    start = Statement() if base is None else read_stated(base)
    return replace(start, fields=start.fields | _values(given))


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with their types; mean and std as tuples."""
    values = {key: given[key] for key in FIELDS if given.get(key) is not None}
    for key in values.keys() & {"mean", "std", "crop"}:
        value = values[key]
        try:
            several = isinstance(value, Sequence) and key != "crop"
            values[key] = tuple(map(float, value)) if several else float(value)
        except (TypeError, ValueError):
            valid = "a number" if key == "crop" else "a number, or one for each channel"
            raise ConfigError(f"{key} {value!r}; valid: {valid}") from None
    known = get_args(Interpolation)
    if values.get("interpolation", known[0]) not in known:
        raise UnknownName("interpolation", str(values["interpolation"]), known)
    return values


def _repeated(key: str, numbers: float | tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number for each channel."""
    if isinstance(numbers, float):
        return (numbers,) * channels
    if len(numbers) not in (1, channels):
        raise ConfigError(
            f"{key} has {len(numbers)} numbers; valid: 1, or {channels}, one for each channel"
        )
    return numbers * channels if len(numbers) == 1 else numbers


def _named(given: str | os.PathLike[str]) -> Statement:
    """Preprocessing by name, or in a file of timm, transformers or vitlab."""
    word = os.fspath(given)
    if word in NAMES:
        return Statement(base=prepared(NAMES[word], (224, 224)))
    path = Path(word)
    if not path.is_file():
        raise InputError(f"preprocessing {word!r} is no file; valid: imagenet, half or a JSON file")
    content = read_json(path)
    try:
        if content and content.keys() <= set(FIELDS):
            return Statement(fields=_values(content))
        found = preprocessing_in(content)
    except VitlabError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path}: not a preprocessing that can be read ({error})") from error
    if found is None:
        raise InputError(
            f"{path}: no preprocessing in it; valid: a preprocessor_config.json, a config.json of "
            f"timm or of a bundle, or an object with mean and std"
        )
    return Statement(base=found)


def stating(source: WeightSource, given: Stated | None, config: Any) -> WeightSource:
    """The source of a model with the preprocessing that is stated for it, if any is."""
    if given is None:
        return source
    size = config.image_size
    found = read_stated(given).on(
        source.preprocessing,
        size=(size, size) if isinstance(size, int) else size,
        channels=config.channels,
        name=source.path.name,
    )
    return replace(source, preprocessing=found)


def as_options(given: Stated) -> Iterator[str]:
    """Options of a command line that state the same."""
    if isinstance(given, Preprocessing):
        if not given.keep_aspect:
            yield from ("--preprocessing", "half")
        given = {key: getattr(given, key) for key in FIELDS}
    if not isinstance(given, Mapping):
        given = {"base": given}
    if given.get("base") is not None:
        base = os.fspath(given["base"])
        yield from ("--preprocessing", base if base in NAMES else os.path.abspath(base))
    for key in FIELDS:
        value = given.get(key)
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield from (f"--{key}", text)
