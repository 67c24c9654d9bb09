"""`vitlab features`: compute the features of images and write them to a file."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.classify.classifier import Classifier, load
from vitlab.data.images import ImageSet, one_of
from vitlab.data.listing import list_images
from vitlab.data.loader import batches_for_evaluation
from vitlab.errors import DataError, InputError
from vitlab.evaluation.feature_file import FeatureInfo, check_suffix, writing_features
from vitlab.machine.device import best_device
from vitlab.models.config import Size, pair
from vitlab.models.features import Readout
from vitlab.models.vit import VisionTransformer
from vitlab.weights.preparation import Stated
from vitlab.weights.resolve import bundled_name
from vitlab.weights.source import fingerprint

# Features batch by batch.

Watch = Callable[[str, int, int], None]
"""Progress callback: name of the stage, number done, and total."""


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A model and the kind of features that it computes."""

    name: str
    classifier: Classifier
    readout: Readout
    batch_size: int
    workers: int
    """Processes that decode files; 0: decode in this one."""

    def stream(
        self, data: ImageSet, broken: dict[Path, str]
    ) -> Iterator[tuple[Float[Tensor, "B ..."], Int[Tensor, " B"]]]:
        """Features and the indices of their images, in order; unreadable files go to `broken`."""
        device = best_device()
        self.classifier.model.to(device)
        for images, _, index in batches_for_evaluation(
            data,
            batch_size=self.batch_size,
            preprocessing=self.classifier.preprocessing,
            device=device,
            workers=self.workers,
            broken=broken,
        ):
            with torch.inference_mode():
                features = self.readout(images).float().cpu()
            _check_finite(features)
            yield features, index

    def info(self) -> FeatureInfo:
        """Description of the features: model, kind, layer, preprocessing and shape."""
        preprocessing = self.classifier.preprocessing
        blank = torch.zeros(1, preprocessing.channels, *preprocessing.size)
        with torch.inference_mode():
            shape = tuple(self.readout(blank).shape[1:])
        kind: Any = self.readout.kind
        return FeatureInfo(
            model=self.name,
            weights=fingerprint(self.classifier.model, embedding=kind == "embedding"),
            kind=kind,
            layer=self.readout.layer,
            preprocessing=preprocessing,
            shape=shape,
            folder=os.getcwd(),
        )


def open_embedder(
    model: str | os.PathLike[str],
    *,
    kind: str = "pooled",
    layer: int | None = None,
    image_size: Size | None = None,
    batch_size: int = 64,
    workers: int = 0,
    preprocessing: Stated | None = None,
) -> Embedder:
    """Open a model to compute features; raise if it has none of this kind and layer.

    An `image_size` other than the model's resizes its position embedding; `preprocessing` is as in
    `vitlab.load_weights`.
    """
    if batch_size < 1 or workers < 0:
        raise InputError(f"batch_size {batch_size} and workers {workers}; valid: from 1 and from 0")
    classifier = _load_for(model, image_size, preprocessing)
    return Embedder(
        name=bundled_name(model) or _name(model),
        classifier=classifier,
        readout=Readout(classifier.model, kind=kind, layer=layer),
        batch_size=batch_size,
        workers=workers,
    )


def _name(model: str | os.PathLike[str]) -> str:
    """Absolute path of a model file, or the name of a model."""
    return os.path.abspath(model) if os.path.exists(model) else os.fspath(model)


def _load_for(
    model: str | os.PathLike[str], size: Size | None, preprocessing: Stated | None
) -> Classifier:
    """Load a model for this image size; at its own size it is left unchanged."""
    classifier = load(model, preprocessing=preprocessing)
    if size is None or pair(size) == classifier.preprocessing.size:
        return classifier
    if not isinstance(classifier.model, VisionTransformer):
        height, width = classifier.preprocessing.size
        raise InputError(
            f"image_size {size} for {os.fspath(model)}, which is no Vision Transformer; "
            f"valid: its own, {height}x{width}"
        )
    return load(model, image_size=size, preprocessing=preprocessing)


def _check_finite(features: Tensor) -> None:
    if not features.isfinite().all():
        raise InputError(
            "features that are not finite; valid: a model whose weights have not diverged"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Extracted:
    """Result of writing features to a file."""

    output: Path
    info: FeatureInfo
    images: int
    labelled: int
    """Number of images with a label."""
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
    preprocessing: Stated | None = None,
    watch: Watch | None = None,
) -> Extracted:
    """Write the features of images to an `.npz` or `.parquet` file, in the order of the images."""
    check_suffix(output)
    embedder = open_embedder(
        model,
        kind=kind,
        layer=layer,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
        preprocessing=preprocessing,
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
