"""An experiment by name or from a TOML file."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from vitlab.config import flat, from_dict, parse_toml
from vitlab.errors import ConfigError, UnknownName, VitlabError
from vitlab.experiments.spec import Experiment

# The experiments by name; each module holds those of one subject, as data.

TABLE = {
    "position": "tokens:POSITION",
    "class-token": "tokens:CLASS_TOKEN",
    "cnn-vs-vit": "networks:CNN_VS_VIT",
    "data-size": "networks:DATA_SIZE",
    "compute": "networks:COMPUTE",
    "few-shot": "networks:FEW_SHOT",
    "small-data": "remedies:SMALL_DATA",
    "norm-placement": "encoder:NORM_PLACEMENT",
    "shape": "encoder:SHAPE",
    "resolution": "sizes:RESOLUTION",
    "attention-kind": "encoder:ATTENTION_KIND",
    "pretraining": "without_labels:PRETRAINING",
}


def named(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in TABLE:
        raise UnknownName("experiment", name, TABLE)
    module, _, attribute = TABLE[name].partition(":")
    found: Experiment = getattr(import_module(f"vitlab.experiments.studies.{module}"), attribute)
    return found


def find(what: str | os.PathLike[str] | Experiment) -> Experiment:
    """The experiment of a name, or of a file whose name ends in .toml."""
    if isinstance(what, Experiment):
        return what
    text = os.fspath(what)
    if text in TABLE or not text.endswith(".toml"):
        return named(text)
    return read(Path(text))


def read(path: Path) -> Experiment:
    """The experiment that a file describes; its name is the file's unless it says another."""
    try:
        content = parse_toml(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    named_so = {"name": path.stem, "title": path.stem, **content}
    try:
        return from_dict(Experiment, _with_flat_changes(named_so))
    except VitlabError as error:
        raise ConfigError(f"{path}: {error}") from error


def _with_flat_changes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Tables inside `changes` as dotted keys: TOML writes `optimizer.lr = 1` as a table."""
    found = dict(content)
    if isinstance(found.get("changes"), Mapping):
        found["changes"] = dict(flat(found["changes"]))
    if isinstance(found.get("arms"), list):
        found["arms"] = [
            _with_flat_changes(arm) if isinstance(arm, Mapping) else arm for arm in found["arms"]
        ]
    return found
