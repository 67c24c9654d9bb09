"""Labels of all samples of an index, numbered when all of them are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.shards.index import LABELS, UNLABELLED
from vitlab.data.shards.samples import Target
from vitlab.data.sources.targets import sorted_labels
from vitlab.errors import DataError, suggest
from vitlab.task import Task

KINDS: dict[Task, str] = {
    "single-label": "a class",
    "multi-label": "a list of labels",
    "regression": "numbers",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """Labels of all samples."""

    task: Task
    names: tuple[str, ...]
    """Names of the classes, labels or values."""
    values: NDArray[Any]
    """Class of each sample, or a row for each."""


class LabelColumn:
    """Labels that are added file by file; their kind is that of the first."""

    def __init__(self, declared: tuple[str, ...] = ()) -> None:
        """`declared` are the names of the classes by number, where they are known."""
        self._declared = declared
        self._task: Task | None = None
        self._unlabelled = 0
        self._numbers: dict[str, int] = {}
        self._codes: list[NDArray[np.int32]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float32]] = []
        self._width = 0

    def declare(self, names: tuple[str, ...], where: str) -> None:
        """Set the names of the classes by number, the same for all files."""
        if self._declared and self._declared != names:
            raise DataError(f"{where} declares other classes than the files before it")
        self._declared = names

    def add(self, targets: Sequence[Target], where: str) -> None:
        """Append the labels of the next samples."""
        for number, target in enumerate(targets):
            self._check(target, f"{where}, sample {number}")
        if self._task is None:
            self._unlabelled += len(targets)
        elif self._task == "regression":
            self._values.append(np.array(targets, np.float32))
        else:
            single = self._task == "single-label"
            lists: list[Any] = [(each,) for each in targets] if single else list(targets)
            codes = [self._number(name, where) for names in lists for name in names]
            self._codes.append(np.array(codes, np.int32))
            self._counts.append(np.fromiter(map(len, lists), np.int64, len(lists)))

    def finish(self) -> Column | None:
        """All labels, numbered; None if no sample has one."""
        if self._task is None:
            return None
        if self._task == "regression":
            values = np.concatenate(self._values)
            names = self._declared or tuple(f"value {n}" for n in range(1, values.shape[1] + 1))
            names = ("value",) if values.shape[1] == 1 and not self._declared else names
            return Column(task=self._task, names=names, values=values)
        names = self._declared or sorted_labels(self._numbers)
        codes = self._renumbered(np.concatenate(self._codes), names)
        if self._task == "single-label":
            before = np.full(self._unlabelled, UNLABELLED, np.int32)
            return Column(task=self._task, names=names, values=np.concatenate([before, codes]))
        counts = np.concatenate(self._counts)
        marks = np.zeros((len(counts), len(names)), LABELS[self._task])
        marks[np.repeat(np.arange(len(counts)), counts), codes] = True
        return Column(task=self._task, names=names, values=marks)

    def _renumbered(self, codes: NDArray[np.int32], names: Sequence[str]) -> NDArray[np.int32]:
        """Numbers of the labels in their final order; the last entry is for those without one."""
        place = {name: number for number, name in enumerate(names)}
        final = [*(place[name] for name in self._numbers), UNLABELLED]
        return np.array(final, np.int32)[codes]

    def _check(self, target: Target, where: str) -> None:
        """Raise for a label of another kind than those before it."""
        task = None if target is None else _task(target)
        if self._task is None and task is not None:
            if self._unlabelled and task != "single-label":
                raise DataError(f"{where}: {KINDS[task]}; samples before it have no label")
            self._task = task
        if self._task is not None and task != self._task:
            found = "no label" if task is None else KINDS[task]
            if task is not None or self._task != "single-label":
                raise DataError(f"{where}: {found}; samples before it have {KINDS[self._task]}")
        if self._task == "regression" and isinstance(target, tuple):
            self._width = self._width or len(target)
            if len(target) != self._width:
                raise DataError(f"{where}: {len(target)} values; valid: {self._width}")

    def _number(self, label: int | str | None, where: str) -> int:
        """Preliminary number of a class, in the order in which they are found."""
        if label is None:
            return UNLABELLED
        if isinstance(label, int) and self._declared:
            if not 0 <= label < len(self._declared):
                raise DataError(f"{where}: class {label}; valid: 0 to {len(self._declared) - 1}")
            label = self._declared[label]
        elif self._declared and label not in self._declared:
            raise DataError(f"{where}: class {label!r}; {suggest(str(label), self._declared)}")
        return self._numbers.setdefault(str(label), len(self._numbers))


def _task(target: Target) -> Task:
    if not isinstance(target, tuple):
        return "single-label"
    return "regression" if target and isinstance(target[0], float) else "multi-label"
