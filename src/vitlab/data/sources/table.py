"""Images listed in a CSV: a row with `path` and targets for each image.

A column `split` separates training and test images; without it, and without a `test.csv` beside
`train.csv`, a part is held out for testing.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from vitlab.data.datasets import DataSource, SurveyFiles, without_images
from vitlab.data.duplicates import check_readable
from vitlab.data.images import FileSet, ImageSet
from vitlab.data.shards.layout import TEST, TRAIN
from vitlab.data.sources.folder import SPLIT_SEED, TEST_SHARE
from vitlab.data.sources.targets import Csv, Targets, choose_targets, read_csv
from vitlab.data.split import hold_out, survey_files
from vitlab.errors import DataError, suggest
from vitlab.images.statistics import read_settings

ENDINGS = (".csv", ".tsv")
PATH, SPLIT = "path", "split"

Splits = tuple[Callable[[], ImageSet], Callable[[], ImageSet]]


def is_table(path: Path) -> bool:
    """True if a path is a CSV, or a folder with one for training."""
    return path.suffix.lower() in ENDINGS or (path / f"{TRAIN}.csv").is_file()


def open_table(
    root: Path, *, channels: int | None = None, survey: SurveyFiles = survey_files
) -> DataSource:
    """Images listed in a CSV, or in `train.csv` of a folder and the `test.csv` beside it."""
    table, test, unused = _tables(root)
    for each in (table, test):
        if each is not None and PATH not in each.columns:
            raise DataError(
                f"{each.file}: no column 'path' among {', '.join(each.columns)}; valid: a first "
                "line such as path,label or path,labels or path,value"
            )
    targets = choose_targets(table, known=(PATH, SPLIT))
    train = _read(table, targets)
    judged = None if test is None else _read(test, targets)
    if test is not None and judged is not None:
        _check_apart(table, train, test, judged)
        check_readable(test.file, judged.paths)
    open_train, open_test = _held_out(train, survey) if judged is None else _apart(train, judged)
    seen = read_settings(train.paths, lambda: _paths(open_train()), channels=channels)
    notes = [f"{table.file.name}: {targets.note}, {len(train):,} images", *unused]
    return DataSource(
        name=root.absolute().stem,
        labels=targets.labels,
        channels=seen.channels,
        image_size=None,
        open_train=open_train,
        open_test=open_test,
        mean=seen.mean,
        std=seen.std,
        task=targets.task,
        white=seen.white,
        divided=judged is None,
        unjudged=None if test is None or judged is None else _unjudged(test, judged, targets),
        notes=(*notes, *([seen.note] if seen.note else [])),
        survey=survey,
    )


def read_table(root: Path) -> tuple[Targets, dict[str, FileSet]]:
    """Targets and files of a table, by split; `""` if it has only one."""
    table, test, _ = _tables(root)
    targets = choose_targets(table, known=(PATH, SPLIT))
    train = _read(table, targets)
    return targets, {"": train} if test is None else {TRAIN: train, TEST[0]: _read(test, targets)}


def _tables(root: Path) -> tuple[Csv, Csv | None, list[str]]:
    """Training and test rows, if specified, and rows of neither."""
    if root.is_dir():
        there = [root / f"{name}.csv" for name in TEST if (root / f"{name}.csv").is_file()]
        unused = [
            f"{file.name} is not used: the test images are those of {there[0].name}"
            for file in there[1:]
        ]
        test = read_csv(there[0]) if there else None
        return read_csv(root / f"{TRAIN}.csv"), test, unused
    table = read_csv(root)
    if SPLIT not in table.columns:
        return table, None, []
    parts = [_part(table, i) for i in range(len(table))]
    rows = {name: [i for i, part in enumerate(parts) if part == name] for name in (TRAIN, *TEST)}
    if not rows[TRAIN]:
        raise DataError(f"{root}: no row has the split 'train'")
    judged, *others = [name for name in TEST if rows[name]] or [""]
    unused = [
        f"{table.file.name}: {len(rows[name]):,} images of split {name} are not used: "
        f"the test images are those of {judged}"
        for name in others
    ]
    return table.pick(rows[TRAIN]), table.pick(rows[judged]) if judged else None, unused


def _part(table: Csv, row: int) -> str:
    name = table.columns[SPLIT][row]
    if name not in (TRAIN, *TEST):
        raise DataError(f"{table.where(row)}: split {name!r}; {suggest(name, (TRAIN, *TEST))}")
    return name


def _read(table: Csv, targets: Targets) -> FileSet:
    """Files, each existing and listed once, and their targets."""
    folder, seen, paths = table.file.parent, dict[str, int](), []
    for row, name in enumerate(table.columns[PATH]):
        first = seen.setdefault(name, row)
        if first != row:
            raise DataError(f"{table.where(row)}: {name!r} again, after line {table.lines[first]}")
        paths.append(folder / name)
    missing = [row for row, path in enumerate(paths) if not os.path.isfile(path)]
    if missing:
        raise _missing(table, missing)
    return FileSet(paths=tuple(paths), labels=targets.encode(table))


def _check_apart(train: Csv, learnt: FileSet, test: Csv, judged: FileSet) -> None:
    """Raise if test images are among the training images."""
    pairs = zip(learnt.paths, train.lines, strict=True)
    lines = {os.path.abspath(path): line for path, line in pairs}
    for row, path in enumerate(judged.paths):
        line = lines.get(os.path.abspath(path))
        if line is not None:
            raise DataError(
                f"{test.where(row)}: {test.columns[PATH][row]!r} for testing, and for training in "
                f"line {line} of {train.file.name}; valid: one of them"
            )


def _missing(table: Csv, rows: Sequence[int]) -> DataError:
    name = table.columns[PATH][rows[0]] or "an empty path"
    others = f" ({len(rows):,} of {len(table):,} are missing)" if len(rows) > 1 else ""
    return DataError(
        f"{table.where(rows[0])}: no such file: {name}{others}; "
        f"valid: files, by paths that begin in {table.file.parent.absolute()}"
    )


def _unjudged(test: Csv, images: FileSet, targets: Targets) -> str | None:
    """Classes without test images; for labels or values, a test split need not have each."""
    if targets.task != "single-label":
        return None
    found = set(images.labels.tolist())
    where = f"{test.file} for testing"
    missing = [label for number, label in enumerate(targets.labels) if number not in found]
    return without_images(where, missing)


def _held_out(files: FileSet, survey: SurveyFiles) -> Splits:
    @cache
    def split() -> tuple[ImageSet, ImageSet]:
        return hold_out(survey(files), share=TEST_SHARE, seed=SPLIT_SEED)

    return lambda: split()[0], lambda: split()[1]


def _apart(train: FileSet, test: FileSet) -> Splits:
    return lambda: train, lambda: test


def _paths(images: ImageSet) -> tuple[Path, ...]:
    assert isinstance(images, FileSet)
    return images.paths
