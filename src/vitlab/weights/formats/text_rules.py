"""Formats of text towers as data: the config that shapes and a config file give, and the rules."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.text import TextConfig, TextTower
from vitlab.nn.init import NoInitialisation
from vitlab.weights.formats.rules import HEAD_WIDTH, PUBLISHED_HEADS, Dialect, Rule, Shape
from vitlab.weights.reading import integer


@dataclass(frozen=True, kw_only=True, slots=True)
class TextInferred:
    """Config of a text tower, and everything that reading its file needs besides."""

    config: TextConfig
    dialect: Dialect = frozenset()
    ignored: tuple[str, ...] = ()
    """Tensors beside both towers, such as numbers of positions."""
    assumed: tuple[str, ...] = ()
    """Each default that neither tensors nor a config file decided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLayout:
    """One format of text towers."""

    name: str
    recognise: Callable[[Collection[str]], bool]
    """True for the names of the tensors that the image tower leaves."""
    config_file: str
    """Name of the file beside the weights that describes the tower."""
    infer: Callable[[Mapping[str, Shape], Mapping[str, Any] | None, ViTConfig], TextInferred]
    """Function of shapes, content of that file, and config of the image tower."""
    rules: Callable[[TextConfig, Dialect], list[Rule]]


def meta_text_tower(config: TextConfig) -> TextTower:
    """Text tower without memory for its tensors."""
    with torch.device("meta"), NoInitialisation():
        return TextTower(config)


def text_shapes(config: TextConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of a text tower."""
    state = meta_text_tower(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def scalar(ours: str, theirs: str, *, shape: Shape = ()) -> Rule:
    """One number, which some files store as a vector."""

    def convert(tensors: list[Tensor]) -> list[Tensor]:
        return [tensor.reshape(()) if tensor.numel() == 1 else tensor for tensor in tensors]

    return Rule(
        (ours,),
        (theirs,),
        convert=convert,  # type: ignore[arg-type]
        revert=lambda tensors: [tensor.reshape(shape) for tensor in tensors],
    )


def sized(shapes: Mapping[str, Shape], name: str, axes: int) -> Shape:
    """Shape of a tensor that must exist and have this many axes."""
    if name not in shapes:
        raise WeightsError(f"tensor {name!r} of the text tower is missing")
    if len(shapes[name]) != axes:
        raise WeightsError(f"tensor {name!r} has shape {shapes[name]}, expected {axes} axes")
    return tuple(shapes[name])


def depth_of(shapes: Mapping[str, Shape], prefix: str) -> int:
    """One more than the highest number that follows the prefix."""
    found = (re.match(rf"{re.escape(prefix)}(\d+)\.", name) for name in shapes)
    return max((int(match.group(1)) + 1 for match in found if match), default=0)


def heads_of(given: Any, width: int, assumed: list[str]) -> int:
    """Heads as stated; without a statement, those of published models of that width."""
    if given is not None:
        return integer("heads of the text tower", given)
    heads = PUBLISHED_HEADS.get(width, max(width // HEAD_WIDTH, 1))
    assumed.append(f"{heads} heads of the text tower")
    return heads


def assume(name: str, value: Any, assumed: list[str]) -> Any:
    """Default value of the text tower, noted as an assumption."""
    assumed.append(f"{name} {value!r} of the text tower")
    return value


def number(name: str, value: Any) -> float:
    """A positive, finite number of a config file."""
    valid = isinstance(value, int | float) and not isinstance(value, bool)
    if not valid or not math.isfinite(value) or value <= 0:
        raise WeightsError(f"{name} {value!r}; valid: a positive number")
    return float(value)
