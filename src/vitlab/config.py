"""Dataclasses as JSON and back, and dotted overrides; an unknown key is an error, never ignored."""

import json
import math
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitlab.errors import ConfigError, one_line, suggest

T = TypeVar("T")
DEEPEST = 100
"""Levels of nesting in a JSON or TOML document."""
INTEGERS = range(-(1 << 63), 1 << 63)
"""Limits of torch and NumPy."""
SHOWN = 200
"""Characters of a value in a message."""
_KNOWN: dict[type[Any], dict[str, Any]] = {}
"""Hints that were found before: finding them takes long."""
WORDS = {"none": None, "null": None, "true": True, "false": False}


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON document; ConfigError if it is not JSON or nested too deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep("JSON") from None
    except ValueError as error:
        raise ConfigError(f"not JSON: {one_line(error)}") from error
    _check_depth(value, "JSON")
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML document; ConfigError if it is not TOML or nested too deep."""
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise _too_deep("TOML") from None
    except ValueError as error:
        raise ConfigError(f"not TOML: {one_line(error)}") from error
    _check_depth(value, "TOML")
    return value


def _check_depth(value: Any, kind: str) -> None:
    """Refuse what functions that call themselves, `repr` among them, could not walk through."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = [item for item in level if isinstance(item, (dict, list))]
        level = [
            item for each in inner for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise _too_deep(kind)


def _too_deep(kind: str) -> ConfigError:
    return ConfigError(f"{kind} nested more than {DEEPEST} levels deep; valid: at most {DEEPEST}")


def check_fields(cls: type[Any], values: Mapping[str, Any]) -> None:
    """Refuse values that are not of the types of a dataclass's fields; other keys are ignored."""
    hints = _hints(cls)
    for name, value in values.items():
        if name in hints:
            _read(value, hints[name], name)


def to_dict(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON-able values: nested objects, lists and scalars."""
    return {name: _plain(getattr(config, name)) for name in _hints(type(config))}


def from_dict(cls: type[T], data: Any) -> T:
    """An instance of the dataclass `cls` from what `to_dict` gave or a JSON file held."""
    return _build(cls, data, "")


def without_removed(cls: type[Any], data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Stored values without options that `cls`, or a dataclass in it, no longer has.

    `cls.REMOVED` holds the former default of each; any other stored value raises.
    """
    removed, kept = getattr(cls, "REMOVED", {}), {}
    for name, value in data.items():
        if name not in removed:
            kept[name] = _without_removed(value, _hints(cls).get(name), f"{prefix}{name}.")
        elif value != removed[name]:
            raise ConfigError(
                f"key '{prefix}{name}': found {_shown(value)}, but this option was removed; "
                f"valid: {removed[name]}, which it was by default"
            )
    return kept


def _without_removed(value: Any, hint: Any, prefix: str) -> Any:
    inner = [m for m in _members(hint) if isinstance(m, type) and is_dataclass(m)]
    if not inner or not isinstance(value, Mapping):
        return value
    return without_removed(inner[0], value, prefix)


def parse(cls: type[Any], key: str, text: str) -> Any:
    """The value that a string means for a field of `cls`; a dotted key reaches nested ones."""
    *parents, last = key.split(".")
    for parent in parents:
        cls = _nested(_hint(cls, parent, key), parent, key)
    return _parse(text, _hint(cls, last, key), key)


def override(config: T, changes: Mapping[str, Any]) -> T:
    """A copy of `config` with dotted keys changed, all at once; strings are read by field type."""
    data = to_dict(config)
    for key, value in changes.items():
        group = data
        new = parse(type(config), key, value) if isinstance(value, str) else value
        *parents, last = key.split(".")
        inner: type[Any] = type(config)
        for parent in parents:
            inner = _nested(_hint(inner, parent, key), parent, key)
            group[parent] = group = group[parent] or {}
        group[last] = _plain(new)
    return from_dict(type(config), data)


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings as dotted keys."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _hints(cls: type[Any]) -> dict[str, Any]:
    """Type hints of the fields that the constructor takes."""
    if cls not in _KNOWN:
        hints = get_type_hints(cls)
        _KNOWN[cls] = {field.name: hints[field.name] for field in fields(cls) if field.init}
    return _KNOWN[cls]


def _hint(cls: type[Any], name: str, key: str) -> Any:
    hints = _hints(cls)
    if name not in hints:
        raise ConfigError(f"unknown key {key!r} of {cls.__name__}; {suggest(name, hints)}")
    return hints[name]


def _nested(hint: Any, name: str, key: str) -> type[Any]:
    """The dataclass that a hint such as `Inner` or `Inner | None` names."""
    for member in _members(hint):
        if isinstance(member, type) and is_dataclass(member):
            return member
    raise ConfigError(f"unknown key {key!r}; {name!r} is {_describe(hint)} and has no keys")


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _build(cls: type[T], data: Any, prefix: str) -> T:
    if not isinstance(data, Mapping):
        at = f"key {prefix[:-1]!r}: " if prefix else ""
        raise ConfigError(
            f"{at}found {_shown(data)}, expected an object with keys of {cls.__name__}"
        )
    values = {
        name: _read(value, _hint(cls, name, f"{prefix}{name}"), f"{prefix}{name}")
        for name, value in without_removed(cls, data, prefix).items()
    }
    for field in fields(cls):  # type: ignore[arg-type]  # any dataclass
        required = field.default is MISSING and field.default_factory is MISSING
        if field.init and required and field.name not in values:
            raise ConfigError(f"missing key '{prefix}{field.name}' of {cls.__name__}")
    return cls(**values)


def _read(value: Any, hint: Any, key: str) -> Any:
    """`value` as `hint` asks: lists may become tuples and ints floats, nothing else changes."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_union(value, hint, key)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build(hint, value, f"{key}.")
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_read_items(value, hint, key))
    if origin is list and isinstance(value, (list, tuple)):
        return [_read(item, arguments[0], f"{key}.{i}") for i, item in enumerate(value)]
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {name: _read(item, arguments[1], f"{key}.{name}") for name, item in value.items()}
    if type(value) is int and value not in INTEGERS:
        raise ConfigError(f"key {key!r}: found {_shown(value)}, expected a number of 64 bits")
    if hint is float and type(value) is int:
        return float(value)
    if origin is Literal and any(value == c and type(value) is type(c) for c in arguments):
        return value
    if hint is float and type(value) is float and not math.isfinite(value):
        raise ConfigError(f"key {key!r}: found {value}, expected a finite number")
    if hint is Any or type(value) is hint:
        return value
    raise _mismatch(value, hint, key)


def _read_items(values: list[Any] | tuple[Any, ...], hint: Any, key: str) -> Iterator[Any]:
    items = get_args(hint)
    if len(items) == 2 and items[1] is Ellipsis:
        items = (items[0],) * len(values)
    if len(values) != len(items):
        raise _mismatch(values, hint, key)
    for i, (value, item) in enumerate(zip(values, items, strict=True)):
        yield _read(value, item, f"{key}.{i}")


def _read_union(value: Any, hint: Any, key: str) -> Any:
    if isinstance(value, Mapping) and any(is_dataclass(member) for member in _members(hint)):
        return _build(_nested(hint, key, key), value, f"{key}.")
    for member in _members(hint):
        try:
            return _read(value, member, key)
        except ConfigError:
            continue
    raise _mismatch(value, hint, key)


def _parse(text: str, hint: Any, key: str) -> Any:
    for value in _readings(text):
        try:
            return _read(value, hint, key)
        except ConfigError:
            continue
    raise _mismatch(text, hint, key)


def _readings(text: str) -> Iterator[Any]:
    """Readings of a `key=value` string, most specific first; the field's type decides."""
    yield from (WORDS[word] for word in (text.strip().lower(),) if word in WORDS)
    yield _number_or_text(text)
    inner = text.strip().strip("()[]")
    for separator in ",x":  # 64,128 or 224x320
        yield [_number_or_text(part) for part in inner.split(separator) if part.strip()]
    yield text


def _number_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except ConfigError:
        return text.strip()


def _mismatch(value: Any, hint: Any, key: str) -> ConfigError:
    return ConfigError(f"key {key!r}: found {_shown(value)}, expected {_describe(hint)}")


def _shown(value: Any) -> str:
    """Shorten a value for one line of an error."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(member) for member in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (tuple, list):
        shown = ", ".join("..." if item is Ellipsis else _describe(item) for item in arguments)
        return f"[{shown}]"
    if hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) and origin is None else str(hint)
