"""A run in several processes: the first decides, surveys and writes; all have the same data."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from vitlab.config import from_dict, to_dict
from vitlab.data.datasets import SurveyFiles
from vitlab.data.duplicates import Watch
from vitlab.data.images import ArraySet, FileSet, ImageSet, StoredSet, Survey
from vitlab.data.split import survey_files
from vitlab.errors import DataError
from vitlab.evaluation.classification import Batches
from vitlab.evaluation.distributed import Batch, DistributedBatches
from vitlab.machine.world import ALONE, World, by_first

T = TypeVar("T")


def share_config(value: T, world: World) -> T:
    """Dataclass of the first process, which may have measured what others cannot know."""
    return value if world.size == 1 else from_dict(type(value), world.share(to_dict(value)))


def divide_batches(
    read: Callable[[World], Batches],
    images: int,
    size: int,
    world: World,
    broken: dict[Path, str],
    blank: Callable[[], Batch] | None = None,
) -> Batches:
    """Batches of up to `size` images that the processes divide; `read` gives those of a world."""
    if world.size == 1:
        return read(ALONE)
    return DistributedBatches(
        every=lambda: read(ALONE),
        own=lambda: read(world),
        count=-(-images // size),
        world=world,
        broken=broken,
        blank=blank,
    )


def survey_once(
    world: World, *, known: Survey | None = None, watch: Watch | None = None
) -> SurveyFiles:
    """Survey of files that the first process reads, and the others compare with their own files."""

    def survey(data: StoredSet) -> StoredSet:
        if world.size == 1 or data.survey is not None or not len(data):
            return survey_files(data, known=known, watch=watch)
        found: list[StoredSet] = []

        def read() -> dict[str, Any]:
            found.append(survey_files(data, known=known, watch=watch))
            assert found[0].survey is not None
            return to_dict(found[0].survey)

        first, mistake = from_dict(Survey, by_first(read, world)), ""
        try:
            found = found or [survey_files(data, known=first)]
        except DataError as error:
            mistake = f"process {world.rank} and process 0: {error}"
        mistakes = world.collect(mistake)
        by_first(lambda: _raise_first(mistakes), world)
        return found[0]

    return survey


def _raise_first(mistakes: Sequence[str]) -> None:
    for mistake in filter(None, mistakes):
        raise DataError(mistake)


def check_same(images: ImageSet, world: World) -> None:
    """Raise if a process has other images or labels, or another version, than the first."""
    if world.size == 1:
        return
    facts = {
        "images or labels": digest_of(images),
        "code of vitlab": code_digest(),
        "version of torch": torch.__version__,
    }
    every = world.collect(facts)
    by_first(lambda: _compare(every), world)


def _compare(every: Sequence[Mapping[str, str]]) -> None:
    for name, first in every[0].items():
        others = [str(rank) for rank, facts in enumerate(every) if facts[name] != first]
        if others:
            raise DataError(
                f"other {name} in process {', '.join(others)} than in process 0; valid: the same "
                f"data in the same order, and the same versions, on every machine "
                f"(vitlab doctor --data compares them)"
            )


@cache
def code_digest() -> str:
    """Hash of all files of the package."""
    root, digest = Path(__file__).parents[1], hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def digest_of(images: ImageSet) -> str:
    """Hash of labels and of pixels, or of the names and sizes of files."""
    digest = hashlib.blake2b(images.labels.numpy().tobytes(), digest_size=16)
    if isinstance(images, ArraySet):
        digest.update(images.images.numpy().tobytes())
    elif isinstance(images, FileSet):
        root = os.path.commonpath([os.path.abspath(path.parent) for path in images.paths])
        for path in images.paths:
            name = os.path.relpath(os.path.abspath(path), root)
            size = 0 if images.survey is not None else path.stat().st_size  # compared already
            digest.update(os.fsencode(name) + b"\0%d\n" % size)
    else:
        for number in range(len(images)):
            digest.update(os.fsencode(images.name(number).name) + b"\n")
    return digest.hexdigest()
