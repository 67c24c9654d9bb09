"""The experiments by name; each module holds those of one subject, as data."""

from importlib import import_module

from vitlab.errors import UnknownName
from vitlab.experiments.spec import Experiment

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
    found: Experiment = getattr(import_module(f"vitlab.experiments.{module}"), attribute)
    return found
