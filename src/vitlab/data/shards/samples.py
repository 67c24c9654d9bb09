"""Samples of a shard or a table, from which an index is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vitlab.data.shards.store import Store

Target = int | str | tuple[str, ...] | tuple[float, ...] | None
"""Class by number or name, labels, values, or None: without a label."""


class Sample(NamedTuple):
    """Place and label of one image."""

    name: bytes
    """Name in its file."""
    offset: int
    size: int
    """Bytes; 0: the sample has no image."""
    digest: int
    target: Target


class Block(NamedTuple):
    """Neighbouring samples that are read from one local file."""

    samples: list[Sample]
    rows: tuple[int, int]
    """Row groups that the images are copied from; (0, 0): read from the file itself."""
    size: int
    """Bytes of the local file."""


class Damaged(ValueError):
    """A file that cannot be read to its end; the message is the reason."""

    def __init__(self, reason: str, before: Block | None = None) -> None:
        super().__init__(reason)
        self.before = before
        """Samples in front of the damage."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files to be indexed."""

    store: Store
    splits: Mapping[str, Sequence[str]]
    """Names of the files of each split, in order."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of tables by their use."""
    classes: tuple[str, ...] = ()
    """Names of classes that are given by number."""

    @property
    def names(self) -> tuple[str, ...]:
        """All files, split by split."""
        return tuple(name for names in self.splits.values() for name in names)
