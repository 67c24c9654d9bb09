"""`vitlab features`: what images are to a model, in a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.images import one_of
from vitlab.data.pointed import list_images
from vitlab.errors import DataError
from vitlab.evaluate.feature_file import FeatureInfo, check_suffix, writing_features
from vitlab.models.config import Size
from vitlab.tasks.embed import Watch, open_embedder


@dataclass(frozen=True, kw_only=True, eq=False)
class Extracted:
    """What was written."""

    output: Path
    info: FeatureInfo
    images: int
    labelled: int
    """Images of a class that is known."""
    broken: dict[str, str]
    """Images that could not be read, with the reason; they have no features."""


def extract(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    output: Path,
    kind: str = "pooled",
    layer: int | None = None,
    image_size: Size | None = None,
    split: str | None = None,
    batch_size: int = 64,
    workers: int = 0,
    download: bool = False,
    watch: Watch | None = None,
) -> Extracted:
    """Write the features of images, in their order, to an `.npz` or `.parquet` file."""
    check_suffix(output)
    embedder = open_embedder(
        model,
        kind=kind,
        layer=layer,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
    )
    info = embedder.info()
    parts = list_images(images, split=split, download=download)
    total, done, labelled = sum(map(len, parts)), 0, 0
    broken: dict[Path, str] = {}
    with writing_features(output, info) as writer:
        for part in parts:
            for features, index in embedder.stream(part.images, broken):
                numbers = index.tolist()
                labels = [part.labels[number] for number in numbers]
                writer.add(features.numpy(), [part.names[n] for n in numbers], labels)
                done, labelled = done + len(numbers), labelled + sum(map(bool, labels))
                if watch is not None:
                    watch("images", done + len(broken), total)
        if not done:
            raise DataError(f"none of {total} images can be read; {one_of(broken)}")
    return Extracted(
        output=output,
        info=info,
        images=done,
        labelled=labelled,
        broken={str(path): reason for path, reason in broken.items()},
    )
