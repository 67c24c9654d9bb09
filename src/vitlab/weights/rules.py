"""Foreign layouts as data: which of our tensors are which of theirs, and how the axes move.

A rule's pattern is an einops string from theirs to ours, read backwards for saving. Where one
side has several tensors they form a leading axis: `three d a k -> (three a k) d` fuses three
kernels into one, and splits them on the way back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from vitlab.errors import WeightsError

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Rule:
    """Some tensors of ours that hold the same numbers as some of theirs."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    pattern: str | None = None
    """None: the same shape."""
    axes: tuple[tuple[str, int], ...] = ()
    empty: Shape | None = None
    """Shape of a tensor of theirs without numbers, which none of ours corresponds to."""

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Our tensors, in the order of `ours`."""
        if not self.ours:
            return []
        return self._move(theirs, self.pattern, len(self.ours))

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Their tensors, in the order of `theirs`."""
        if self.empty is not None:
            return [torch.zeros(self.empty)]
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


def both(ours: str, theirs: str, *, bias: bool = True) -> list[Rule]:
    """`weight` and `bias` of one layer under two names."""
    names = ("weight", "bias") if bias else ("weight",)
    return [same(f"{ours}.{name}", f"{theirs}.{name}") for name in names]


def expected_shapes(rules: Iterable[Rule], ours: Shapes) -> dict[str, Shape]:
    """The shape that each of their tensors must have for a model with our shapes."""
    expected: dict[str, Shape] = {}
    for rule in rules:
        tensors = [torch.empty(ours[name], device="meta") for name in rule.ours]
        for name, tensor in zip(rule.theirs, rule.to_theirs(tensors), strict=True):
            expected[name] = tuple(tensor.shape)
    return expected


def check_blocks(blocks: int, found: Shapes, *, file: str) -> None:
    """Raise if a model of so many blocks cannot be in a file, before it is built."""
    if blocks > len(found):
        raise WeightsError(
            f"{file}: {len(found)} tensors, too few for the {blocks} blocks of the model's config"
        )


def check_file(found: Shapes, expected: Shapes, *, file: str, ignored: Iterable[str] = ()) -> None:
    """Strict both ways: a missing, a wrongly shaped and an unused tensor are errors."""
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
    """Our own model must be covered exactly; a gap means the format cannot hold it."""
    covered = {name for rule in rules for name in rule.ours}
    gaps = sorted(covered ^ set(ours))
    if gaps:
        raise WeightsError(f"format {format!r} has no place for our tensor {gaps[0]!r}")


def converted(rules: Iterable[Rule], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors one after the other, each with memory of its own."""
    for rule in rules:
        theirs = [read(name) for name in rule.theirs]
        try:
            ours = rule.to_ours(theirs)
        except EinopsError as error:
            raise WeightsError(f"tensor {rule.theirs[0]!r}: {error}") from error
        del theirs
        yield from zip(rule.ours, ours, strict=True)
