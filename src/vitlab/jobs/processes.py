"""A run in several processes: the first decides, surveys and writes; all have the same data."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from vitlab.config import from_dict, to_dict
from vitlab.data.datasets import SurveyFiles
from vitlab.data.duplicates import Watch
from vitlab.data.images import ArraySet, FileSet, ImageSet, StoredSet, Survey
from vitlab.data.split import survey_files
from vitlab.errors import DataError
from vitlab.evaluation.classification import Batches
from vitlab.evaluation.distributed import Batch, DistributedBatches
from vitlab.machine.world import ALONE, World

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
        if world.rank == 0:
            found = survey_files(data, known=known, watch=watch)
            assert found.survey is not None
            world.share(to_dict(found.survey))
            return found
        first = from_dict(Survey, world.share({}))
        try:
            return survey_files(data, known=first)
        except DataError as error:
            raise DataError(f"process {world.rank} and process 0: {error}") from error

    return survey


def check_same_data(images: ImageSet, world: World) -> None:
    """Raise if processes have other images or labels than the first."""
    if world.size == 1:
        return
    digests = world.collect(digest_of(images))
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise DataError(
            f"processes {', '.join(map(str, others))} have other images or labels than process 0; "
            f"valid: the same data in the same order on every machine"
        )


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
