"""The figures by name: what each needs, and how it is made."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from vitlab.errors import UnknownName
from vitlab.tasks.figures import attention, cka, feature_pca, filters, positions, tsne
from vitlab.tasks.figures.figure import Figure, Seen


@dataclass(frozen=True, kw_only=True)
class Maker:
    """How one figure is made."""

    build: Callable[[Seen], Figure]
    draw: Callable[[Figure], Any]
    check: Callable[[nn.Module], object] = lambda model: None
    """Raises `Lacks` for a model that has nothing of the kind, before any image is read."""
    needs: frozenset[str] = frozenset()
    """What is gathered over images: fields of `Gatherer`."""


FIGURES = {
    "filters": Maker(build=filters.build, draw=filters.draw),
    "positions": Maker(build=positions.build, draw=positions.draw, check=positions.check),
    "attention-distance": Maker(
        build=attention.build_distance,
        draw=attention.draw_distance,
        check=attention.check_distance,
        needs=frozenset({"attention"}),
    ),
    "attention-entropy": Maker(
        build=attention.build_entropy,
        draw=attention.draw_entropy,
        check=attention.check_entropy,
        needs=frozenset({"attention"}),
    ),
    "feature-pca": Maker(
        build=feature_pca.build,
        draw=feature_pca.draw,
        check=feature_pca.check,
        needs=frozenset({"pictures"}),
    ),
    "tsne": Maker(build=tsne.build, draw=tsne.draw, needs=frozenset({"pooled"})),
    "cka": Maker(build=cka.build, draw=cka.draw, check=cka.check, needs=frozenset({"means"})),
}


def chosen(only: Iterable[str] | None) -> list[str]:
    """The figures that are wanted, in the order of the table; None: all."""
    if only is None:
        return list(FIGURES)
    wanted = set(only)
    for name in sorted(wanted):
        if name not in FIGURES:
            raise UnknownName("figure", name, FIGURES)
    return [name for name in FIGURES if name in wanted]
