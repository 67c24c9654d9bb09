"""Parameters in the query of a request: known names only, each of them once and checked."""

import re
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from vitlab.serve.settings import Refused

MOST_TOP = 1000
LONGEST = 200
"""Characters of a value."""
FORMATS = ("json", "png")
NUMBER = re.compile(r"-?[0-9]{1,6}\Z")
TOKEN = re.compile(r"([0-9]{1,6}),([0-9]{1,6})\Z")


def classify(query: QueryParams) -> int:
    """Number of labels of `/classify`."""
    text = _values(query, ("top",)).get("top", "5")
    if not NUMBER.match(text) or not 1 <= int(text) <= MOST_TOP:
        raise _wrong("top", text, f"1 to {MOST_TOP}")
    return int(text)


def features(query: QueryParams) -> dict[str, Any]:
    """Options of `/features`."""
    values = _values(query, ("kind", "layer"))
    return {"kind": values.get("kind", "pooled"), "layer": _whole(values, "layer")}


def explain(query: QueryParams) -> dict[str, Any]:
    """Options of `/explain`: only those that were given."""
    names = ("method", "class", "layer", "head", "token", "each", "format")
    values = _values(query, names)
    if values.get("format", "json") not in FORMATS:
        raise _wrong("format", values["format"], ", ".join(FORMATS))
    options = _place(values)
    options |= {name: values[name] for name in ("method", "class", "each") if name in values}
    return options


def attention(query: QueryParams) -> dict[str, Any]:
    """Options of `/attention`: only those that were given."""
    return _place(_values(query, ("layer", "head", "token")))


def wants_png(query: QueryParams, accept: str) -> bool:
    """True if a figure is wanted: by `format`, or without it by the header Accept."""
    wanted = dict(query.multi_items()).get("format")
    return accept.startswith("image/") if wanted is None else wanted == "png"


def _values(query: QueryParams, names: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in query.multi_items():
        if name not in names:
            raise _wrong("parameter", name, ", ".join(names))
        if name in values:
            raise Refused(422, "parameter", f"{name} twice; valid: once")
        if len(value) > LONGEST:
            raise Refused(422, "parameter", f"{name} of {len(value)} characters; valid: {LONGEST}")
        values[name] = value
    return values


def _place(values: Mapping[str, str]) -> dict[str, Any]:
    """Layer, head and token of a model, as far as they are given."""
    found: dict[str, Any] = {
        name: _whole(values, name) for name in ("layer", "head") if name in values
    }
    if "token" in values:
        match = TOKEN.match(values["token"])
        if match is None:
            raise _wrong("token", values["token"], "row,column of a patch, from 0")
        found["token"] = (int(match[1]), int(match[2]))
    return found


def _whole(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not NUMBER.match(text):
        raise _wrong(name, text, "a whole number")
    return int(text)


def _wrong(name: str, text: str, valid: str) -> Refused:
    return Refused(422, "parameter", f"{name} {text[:20]!r}; valid: {valid}")
