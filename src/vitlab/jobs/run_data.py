"""The images of a run: opened, looked at once, and a part of them held out."""

import logging
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import torch

from vitlab.data.class_counts import ClassCounts, class_counts, count_images
from vitlab.data.datasets import NAMED, DataSource, without_images
from vitlab.data.images import FileSet, ImageSet, Survey, joined, one_of
from vitlab.data.split import draw_per_class, hold_out, pictures_per_class
from vitlab.data.survey import check_share, recalling, surveyed
from vitlab.errors import DataError
from vitlab.training.config import TrainConfig

log = logging.getLogger(__name__)


def open_images(
    source: DataSource, config: TrainConfig, known: Survey | None
) -> tuple[ImageSet, ImageSet | None]:
    """The training images that can be read, and those held out from them, if any are to be.

    Those of a resumed run must be the same files as in the survey that is known of them.
    """
    if known is None and config.judge_all and config.judged_on == "test":
        check_judged(source)
    images = _open_train(source, config.max_broken, known)
    try:
        train, validation = divided(images, config)
    except DataError:
        if config.judge_all and config.objective is None and not config.images_per_class:
            _check_parts(source, config, images, images.subset(torch.tensor([], dtype=torch.int64)))
        raise
    if config.judge_all and config.objective is None:
        _check_parts(source, config, train, validation)
    return train, validation


def _check_parts(
    source: DataSource, config: TrainConfig, train: ImageSet, validation: ImageSet | None
) -> None:
    """Raise if a class is missing in a part of the data that a run split by itself."""
    parts = {"to learn from": train}
    if validation is not None:
        parts["to hold out"] = validation
    if source.divided and source.open_test is not None and config.judged_on == "test":
        parts["to test"] = source.open_test()
    check_split(source, parts, otherwise=", --set hold_out=0, or --set judge_all=false")


def check_judged(source: DataSource) -> None:
    """Refuse classes to learn that the test images have none of."""
    if source.unjudged is not None:
        raise DataError(
            f"{source.unjudged}: nothing would tell whether that was learnt; "
            "valid: the same classes in both, or --set judge_all=false"
        )


def check_split(source: DataSource, parts: Mapping[str, ImageSet], *, otherwise: str = "") -> None:
    """Raise if a class is missing in a part of a split that we made; `parts` by their purpose."""
    if source.task != "single-label":
        return
    counts = torch.stack([class_counts(part.labels, len(source.labels)) for part in parts.values()])
    small = ((counts == 0).any(dim=0) & (counts > 0).any(dim=0)).nonzero()[:, 0].tolist()
    if not small:
        return
    have = pictures_per_class(reduce(joined, parts.values()), len(source.labels))
    listed = ", ".join(f"{have[i]} of {source.labels[i]}" for i in small[:NAMED])
    more = f" and {len(small) - NAMED:,} more classes" if len(small) > NAMED else ""
    purposes = ", ".join(f"1 {purpose}" for purpose in parts)
    raise DataError(
        f"{source.name} has too few different images for every class to be in each part of the "
        f"split: {listed}{more}; valid: at least {len(parts)} of each class ({purposes}){otherwise}"
    )


def split_counts(
    source: DataSource, train: ImageSet, validation: ImageSet | None
) -> dict[str, ClassCounts]:
    """The images to learn from and those held out, by the name of the split."""
    parts = {"train": train} if validation is None else {"train": train, "validation": validation}
    return {name: count_images(part.labels, source.labels) for name, part in parts.items()}


def split_notes(
    source: DataSource, train: ImageSet, validation: ImageSet | None
) -> tuple[str, ...]:
    """Sentences about the images of a run, before its first step."""
    counts = split_counts(source, train, validation)
    listed = ", ".join(f"{name} {found.text}" for name, found in counts.items())
    return (f"images: {listed}", *(f"warning: {text}" for text in absent_classes(source, counts)))


def absent_classes(source: DataSource, counts: Mapping[str, ClassCounts]) -> tuple[str, ...]:
    """Sentences naming the classes or labels without an image in a split; `counts` by split."""
    found = (without_images(f"{name} of {source.name}", c.absent) for name, c in counts.items())
    return tuple(f"{sentence}: not evaluated" for sentence in found if sentence)


def divided(images: ImageSet, config: TrainConfig) -> tuple[ImageSet, ImageSet | None]:
    """What a run learns from, of images that can be read, and what it holds out."""
    if config.images_per_class:
        images = draw_per_class(images, config.images_per_class, seed=config.seed)
    if not config.hold_out:
        return images, None
    try:
        return hold_out(images, share=config.hold_out, seed=config.seed)
    except DataError as error:
        raise DataError(f"{error}; --set hold_out=0 holds none out") from error


def _open_train(source: DataSource, max_broken: float, known: Survey | None) -> ImageSet:
    with recalling(known):
        images = source.open_train()
        if not isinstance(images, FileSet):
            return images
        images = surveyed(images)
    assert images.survey is not None
    check_share(images.survey, max_broken)
    return images


def left_out(images: ImageSet) -> dict[Path, str]:
    """The files that cannot be read, with the reason; how many they are is said aloud."""
    survey = survey_of(images)
    found = {} if survey is None else dict(survey.broken_paths)
    if survey is not None and found:
        tell_broken(found, f"{survey.files} images")
    return found


def tell_broken(broken: Mapping[Path, str], of: str) -> None:
    """Say how many files cannot be read, and name one."""
    log.warning("%d of %s cannot be read and take no part; %s", len(broken), of, one_of(broken))


def survey_of(images: ImageSet) -> Survey | None:
    """What was found in the files of a set, if it has files and somebody looked."""
    return images.survey if isinstance(images, FileSet) else None
