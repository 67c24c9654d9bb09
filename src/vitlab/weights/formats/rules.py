"""Foreign layouts as data: the correspondence of tensors, and the order of their axes.

A rule's pattern is an einops string from theirs to ours, reversed for saving. Several tensors on
one side form a leading axis: `three d a k -> (three a k) d` fuses three kernels into one, and
splits them on the way back.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


Convert = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors of ours with the same values as some of theirs."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    pattern: str | None = None
    """None: the same shape."""
    axes: tuple[tuple[str, int], ...] = ()
    constant: Callable[[], Tensor] | None = None
    """Makes a tensor of theirs without a counterpart in ours: it follows from the config."""
    convert: Convert | None = None
    """Our tensors from theirs, where no pattern can say it; `revert` is the inverse."""
    revert: Convert | None = None

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Our tensors, in the order of `ours`."""
        if not self.ours:
            return []
        if self.convert is not None:
            return self.convert(theirs)
        return self._move(theirs, self.pattern, len(self.ours))

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Their tensors, in the order of `theirs`."""
        if self.constant is not None:
            return [self.constant()]
        if self.revert is not None:
            return self.revert(ours)
        reverse = None
        if self.pattern is not None:
            left, right = self.pattern.split("->")
            reverse = f"{right} -> {left}"
        return self._move(ours, reverse, len(self.theirs))

    def _move(self, tensors: Sequence[Tensor], pattern: str | None, count: int) -> list[Tensor]:
        if pattern is None:
            return list(tensors)
        joined = tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))
        moved = rearrange(joined, pattern, **dict(self.axes))
        return [moved] if count == 1 else list(moved.unbind(0))


def same(ours: str, theirs: str) -> Rule:
    """One tensor under two names."""
    return Rule((ours,), (theirs,))


def moved(ours: str, theirs: str, pattern: str, **axes: int) -> Rule:
    """One tensor whose axes are ordered differently."""
    return Rule((ours,), (theirs,), pattern, tuple(axes.items()))


def fixed(theirs: str, constant: Callable[[], Tensor]) -> Rule:
    """One tensor of theirs that follows from the config."""
    return Rule((), (theirs,), constant=constant)


def stacked(ours: str, theirs: Sequence[str], pattern: str, **axes: int) -> Rule:
    """One tensor of ours from several of theirs, which form the first axis of the pattern."""
    return Rule((ours,), tuple(theirs), pattern, tuple(axes.items()))


def split(ours: Sequence[str], theirs: str, pattern: str, **axes: int) -> Rule:
    """Several tensors of ours, the first axis of the pattern's result, from one of theirs."""
    return Rule(tuple(ours), (theirs,), pattern, tuple(axes.items()))


def both(ours: str, theirs: str, *, bias: bool = True) -> list[Rule]:
    """`weight` and `bias` of one layer under two names."""
    names = ("weight", "bias") if bias else ("weight",)
    return [same(f"{ours}.{name}", f"{theirs}.{name}") for name in names]


def expected_shapes(rules: Iterable[Rule], ours: Shapes) -> dict[str, Shape]:
    """Required shape of each of their tensors for a model with our shapes."""
    expected: dict[str, Shape] = {}
    for rule in rules:
        tensors = [torch.empty(ours[name], device="meta") for name in rule.ours]
        for name, tensor in zip(rule.theirs, rule.to_theirs(tensors), strict=True):
            expected[name] = tuple(tensor.shape)
    return expected


def check_blocks(blocks: int, found: Shapes, *, file: str) -> None:
    """Raise if a model of this many blocks cannot be in a file, before it is built."""
    if blocks > len(found):
        raise WeightsError(
            f"{file}: {len(found)} tensors, too few for the {blocks} blocks of the model's config"
        )


def check_shapes(
    found: Shapes, expected: Shapes, *, file: str, ignored: Iterable[str] = ()
) -> None:
    """Strict in both directions: missing, wrongly shaped and unused tensors raise."""
    for name, shape in expected.items():
        if name not in found:
            raise WeightsError(f"{file}: tensor {name!r} {shape} is missing")
        if tuple(found[name]) != shape:
            raise WeightsError(
                f"{file}: tensor {name!r} has shape {tuple(found[name])}, expected {shape}"
            )
    unused = sorted(set(found) - set(expected) - set(ignored))
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise WeightsError(
            f"{file}: tensor {unused[0]!r} {tuple(found[unused[0]])}{more} is not used by "
            f"the model that the others describe"
        )


def check_complete(rules: Iterable[Rule], ours: Iterable[str], *, format: str) -> None:
    """Raise unless our model is covered exactly; a gap means the format cannot hold it."""
    covered = {name for rule in rules for name in rule.ours}
    gaps = sorted(covered ^ set(ours))
    if gaps:
        raise WeightsError(f"format {format!r} has no place for our tensor {gaps[0]!r}")


def converted(rules: Iterable[Rule], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors one after the other, each in its own memory."""
    for rule in rules:
        theirs = [read(name) for name in rule.theirs]
        try:
            ours = rule.to_ours(theirs)
        except EinopsError as error:
            raise WeightsError(f"tensor {rule.theirs[0]!r}: {error}") from error
        del theirs
        yield from zip(rule.ours, ours, strict=True)


# Interface of every format: recognition, config, and correspondence of tensors.

HEAD_WIDTH = 64
"""Width of a head in nearly every published model; assumed if unknown."""
PUBLISHED_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads of published models whose heads have another width: so400m, H, g and G."""


class StoredShapes(dict[str, Shape]):
    """Shapes of the tensors of a file, from which a format infers the config."""

    def first(self, *names: str) -> Shape:
        """Shape of the first name that exists; if none does, raises with the first."""
        for name in names:
            if name in self:
                return tuple(self[name])
        raise WeightsError(f"tensor {names[0]!r} is missing")

    def sized(self, name: str, dimensions: int) -> Shape:
        """Shape of a tensor that must have this many axes."""
        shape = self.first(name)
        if len(shape) != dimensions:
            raise WeightsError(f"tensor {name!r} has shape {shape}, expected {dimensions} axes")
        return shape

    def numbered(self, pattern: str) -> int:
        """One more than the highest number that `pattern` finds at the start of a name."""
        found = (re.match(pattern, name) for name in self)
        return max((int(match.group(1)) + 1 for match in found if match), default=0)

    def any_layer(self, template: str, depth: int) -> str | None:
        """First existing layer name: a tensor of one block must be in all."""
        return next((n for i in range(depth) if (n := template.format(i)) in self), None)

    def layer(self, template: str, depth: int, dimensions: int) -> Shape:
        """Shape of a tensor that every block has, from any block that has it."""
        return self.sized(self.any_layer(template, depth) or template.format(0), dimensions)

    def classes(self, weight: str, bias: str, axis: int) -> int:
        """Outputs of the head; 0 without a head."""
        if weight in self:
            return self.sized(weight, 2)[axis]
        return self.sized(bias, 1)[0] if bias in self else 0

    def table(self, name: str) -> tuple[str, int] | None:
        """Name and rows of a position table [1, N, D]; None if it is missing."""
        return (name, self.sized(name, 3)[1]) if name in self else None


@dataclass(kw_only=True, slots=True)
class Inferred:
    """Config inferred from the tensors of a file, and assumptions for the rest."""

    decided: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    """Fields not decided by tensors: the value of the format's own implementation."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Fields not visible in tensors, but fixed by the format's own implementation."""
    attention_width: int | None = None
    """Heads x head width; together with `heads` it gives the head width."""
    published_heads: Mapping[int, int] = field(default_factory=lambda: PUBLISHED_HEADS)
    """Heads to assume for that product, if they do not have the usual width."""
    positions: tuple[str, int] | None = None
    """Name and number of rows of a learned position table."""
    offsets: tuple[str, int] | None = None
    """Name and number of rows of a table of offsets between patches, without those of prefixes."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Fields whose numbers are a tensor of the file."""
    prefixes: tuple[str, ...] = ("cls",)
    """Readings of the table's first rows as `position_prefix`, most likely first."""
    class_token_name: str = "cls_token"
    dialect: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Assumptions of the format in reading ambiguous shapes."""

    @property
    def table(self) -> tuple[str, int] | None:
        """Name and rows of the table that shows the grid."""
        return self.positions or self.offsets

    def rows_of(self, grid: tuple[int, int]) -> int:
        """Rows of that table for the patches of a grid."""
        rows, columns = grid
        return rows * columns if self.positions else (2 * rows - 1) * (2 * columns - 1)

    def square_of(self, rows: int) -> int | None:
        """Side of the square grid with so many rows, if there is one."""
        side = math.isqrt(max(rows, 0))
        side = side if self.positions else (side + 1) // 2
        return side if side and self.rows_of((side, side)) == rows else None


Dialect = frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One format, with everything specific to it."""

    name: str
    recognise: Callable[[Collection[str]], bool]
    infer: Callable[[StoredShapes, dict[str, Any]], Inferred]
    """Function of shapes and hints (config file and keywords, for values not in the shapes)."""
    rules: Callable[[ViTConfig, Dialect], list[Rule]]
    check: Callable[[ViTConfig], None]
    """Raise if the format cannot express the config."""


DROP_HEAD = "; vitlab convert --set head=linear drops its hidden layer, pre_logits"


def square_or_pair(height: int, width: int) -> int | tuple[int, int]:
    """One number for a square."""
    return height if height == width else (height, width)


def require(format: str, config: ViTConfig, **allowed: tuple[Any, ...]) -> None:
    """Raise for the first field whose value the format cannot express."""
    for name, values in allowed.items():
        value = getattr(config, name)
        if value not in values:
            valid = ", ".join(map(repr, values))
            remedy = DROP_HEAD if (name, value) == ("head", "mlp") else ""
            raise WeightsError(
                f"format {format!r} cannot express {name}={value!r}; valid: {valid}{remedy}"
            )


PLAIN: dict[str, tuple[Any, ...]] = {
    "stem": ("patch",),
    "position": ("learned1d",),
    "position_at": ("stem",),
    "rope": (False,),
    "norm": ("pre",),
    "norm_bias": (True,),
    "norm_kind": ("layer",),
    "embed_norm": (False,),
    "branch_norm": (None,),
    "attention": ("full",),
    "pool_after": (None,),
    "mlp_activation": ("gelu",),
    "mlp_bias": (True,),
    "mlp_norm": (False,),
    "patch_norm": ("none",),
    "patch_bias": (True,),
    "head": ("linear", "mlp"),
    "key_bias": (True,),
    "registers": (0,),
    "norm_at": ("tokens",),
    "proj": (True,),
    "proj_bias": (True,),
    "qk_norm": (False,),
    "layer_scale": (None,),
    "relative_table": ("none",),
    "attention_norm": (False,),
    "unit_norm": (False,),
    "pool_heads": (None,),
    "pool_mlp_width": (None,),
}
"""Valid values of a plain ViT: pre-norm, with a learned table at the stem, and nothing optional."""
CLASS_TOKEN: dict[str, tuple[Any, ...]] = {
    "class_token": (True,),
    "position_prefix": ("cls", "all"),
    "pool": ("cls",),
}
"""Valid values where the class token is fixed."""


def require_plain(format: str, config: ViTConfig, **allowed: tuple[Any, ...] | None) -> None:
    """Raise unless the config is a plain ViT; `allowed` has other valid values, or None for any."""
    valid = {**PLAIN, **allowed}
    require(format, config, **{name: values for name, values in valid.items() if values})


def require_even_heads(format: str, config: ViTConfig) -> None:
    """Raise if heads x head_width differs from width."""
    if config.heads * config.key_width != config.width:
        raise WeightsError(
            f"format {format!r} cannot express head_width={config.key_width} with {config.heads} "
            f"heads and width {config.width}; valid: {config.width / config.heads:g}"
        )
