"""The experiments by name; each module holds those of one subject, as data."""

from importlib import import_module

from vitlab.errors import UnknownName
from vitlab.experiments.spec import Experiment

TABLE = {
    "position": "tokens:POSITION",
    "class-token": "tokens:CLASS_TOKEN",
}


def named(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in TABLE:
        raise UnknownName("experiment", name, TABLE)
    module, _, attribute = TABLE[name].partition(":")
    found: Experiment = getattr(import_module(f"vitlab.experiments.{module}"), attribute)
    return found
