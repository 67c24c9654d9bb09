"""What every format answers: is it mine, which model is it, which tensor is which."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.rules import Rule, Shape, Shapes

HEAD_WIDTH = 64
"""Width of a head in nearly every published model; assumed where nothing decides it."""
PUBLISHED_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads of published models whose heads have another width: so400m, H, g and G."""


@dataclass(kw_only=True, slots=True)
class Inferred:
    """What the tensors of a file decide, and what is assumed where they do not."""

    decided: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    """Fields that tensors leave open: the value of the format's own implementation."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Fields that tensors do not show, but the format's own implementation fixes."""
    attention_width: int | None = None
    """Heads x head width; together with `heads` it gives the head width."""
    published_heads: Mapping[int, int] = field(default_factory=lambda: PUBLISHED_HEADS)
    """Heads to assume for that product, where they are not as wide as usual."""
    positions: tuple[str, int] | None = None
    """Name and number of rows of a learned position table."""
    prefixes: tuple[str, ...] = ("cls",)
    """Readings of the table's first rows as `position_prefix`, most likely first."""
    class_token_name: str = "cls_token"
    dialect: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What the format's reading of ambiguous shapes assumed."""


Dialect = frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One format: all that is particular to it."""

    name: str
    recognise: Callable[[Collection[str]], bool]
    infer: Callable[[Shapes, dict[str, Any]], Inferred]
    """From shapes and hints (config file and keywords, for what shapes leave open)."""
    rules: Callable[[ViTConfig, Dialect], list[Rule]]
    check: Callable[[ViTConfig], None]
    """Raise where the format has no way to say what the config says."""


def shape_of(shapes: Shapes, *names: str) -> Shape:
    """Shape of the first name that exists; all missing is an error that names the first."""
    for name in names:
        if name in shapes:
            return tuple(shapes[name])
    raise WeightsError(f"tensor {names[0]!r} is missing")


def sized(shapes: Shapes, name: str, dimensions: int) -> Shape:
    """Shape of a tensor that must have so many axes."""
    shape = shape_of(shapes, name)
    if len(shape) != dimensions:
        raise WeightsError(f"tensor {name!r} has shape {shape}, expected {dimensions} axes")
    return shape


def numbered(names: Iterable[str], pattern: str) -> int:
    """One more than the highest number that `pattern` finds at the start of a name."""
    found = (re.match(pattern, name) for name in names)
    return max((int(match.group(1)) + 1 for match in found if match), default=0)


def any_layer(shapes: Shapes, template: str, depth: int) -> str | None:
    """The first layer's name that exists: what one block has, all must have."""
    return next((n for i in range(depth) if (n := template.format(i)) in shapes), None)


def layer_shape(shapes: Shapes, template: str, depth: int, dimensions: int) -> Shape:
    """Shape of a tensor that every block has, from whichever block has it."""
    name = any_layer(shapes, template, depth) or template.format(0)
    return sized(shapes, name, dimensions)


def classes_of(shapes: Shapes, weight: str, bias: str, axis: int) -> int:
    """Outputs of the head; 0 when there is none."""
    if weight in shapes:
        return sized(shapes, weight, 2)[axis]
    return sized(shapes, bias, 1)[0] if bias in shapes else 0


def square_or_pair(height: int, width: int) -> int | tuple[int, int]:
    """One number for a square."""
    return height if height == width else (height, width)


def require(format: str, config: ViTConfig, **allowed: tuple[Any, ...]) -> None:
    """Raise for the first field whose value the format cannot express."""
    for name, values in allowed.items():
        value = getattr(config, name)
        if value not in values:
            valid = ", ".join(map(repr, values))
            raise WeightsError(f"format {format!r} cannot express {name}={value!r}; valid: {valid}")


def require_plain(format: str, config: ViTConfig, *, stems: tuple[str, ...] = ("patch",)) -> None:
    """What every foreign format shares: a pre-norm ViT with a learned table at the stem."""
    require(
        format,
        config,
        stem=stems,
        position=("learned1d",),
        position_at=("stem",),
        norm=("pre",),
        norm_bias=(True,),
        branch_norm=(None,),
        attention=("full",),
        pool_after=(None,),
        mlp_activation=("gelu",),
    )


def require_even_heads(format: str, config: ViTConfig) -> None:
    """Raise where heads x head_width differs from width."""
    if config.heads * config.key_width != config.width:
        raise WeightsError(
            f"format {format!r} cannot express head_width={config.key_width} with {config.heads} "
            f"heads and width {config.width}; valid: {config.width / config.heads:g}"
        )
