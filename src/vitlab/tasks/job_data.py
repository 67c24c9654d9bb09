"""The images of a run: opened, looked at once, and a part of them held out."""

import logging
from collections.abc import Mapping
from pathlib import Path

from vitlab.data.datasets import DataSource
from vitlab.data.draw import draw_per_class
from vitlab.data.images import FileSet, ImageSet, Survey, one_of
from vitlab.data.split import hold_out
from vitlab.data.survey import check_share, recalling, surveyed
from vitlab.errors import DataError
from vitlab.train.config import TrainConfig

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
    return divided(images, config)


def check_judged(source: DataSource) -> None:
    """Refuse classes to learn that the test images have none of."""
    if source.unjudged is not None:
        raise DataError(
            f"{source.unjudged}: nothing would tell whether that was learnt; "
            "valid: the same classes in both, or --set judge_all=false"
        )


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


def unjudged(source: DataSource, split: str) -> tuple[str, ...]:
    """What a page says of classes that nothing was measured of."""
    if split != "test" or source.unjudged is None:
        return ()
    return (f"{source.unjudged}: not judged.",)


def survey_of(images: ImageSet) -> Survey | None:
    """What was found in the files of a set, if it has files and somebody looked."""
    return images.survey if isinstance(images, FileSet) else None
