"""`vitlab features`: what images are to a model, in a file."""

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
from vitlab.data.loading.loader import batches_for_evaluation
from vitlab.data.pointed import list_images
from vitlab.errors import DataError, InputError
from vitlab.evaluation.feature_file import FeatureInfo, check_suffix, writing_features
from vitlab.machine.device import best_device
from vitlab.models.config import Size, pair
from vitlab.models.features import Readout
from vitlab.models.vit import VisionTransformer
from vitlab.weights.bundled import bundled_name
from vitlab.weights.digest import fingerprint

# The features of many images, batch by batch.

Watch = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many are."""


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A model that is asked for features, and how."""

    name: str
    classifier: Classifier
    readout: Readout
    batch_size: int
    workers: int
    """Processes that decode files; 0: this one does."""

    def stream(
        self, data: ImageSet, broken: dict[Path, str]
    ) -> Iterator[tuple[Float[Tensor, "B ..."], Int[Tensor, " B"]]]:
        """Features and the numbers of their images, in order; unreadable files go to `broken`."""
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
        """What the features will be, without any image."""
        preprocessing = self.classifier.preprocessing
        blank = torch.zeros(1, preprocessing.channels, *preprocessing.size)
        with torch.inference_mode():
            shape = tuple(self.readout(blank).shape[1:])
        kind: Any = self.readout.kind
        return FeatureInfo(
            model=self.name,
            weights=fingerprint(self.classifier.model),
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
) -> Embedder:
    """A model that gives features of a kind and layer; one that cannot is an error.

    Images of another `image_size` than the model's own resize its positions.
    """
    if batch_size < 1 or workers < 0:
        raise InputError(f"batch_size {batch_size} and workers {workers}; valid: from 1 and from 0")
    classifier = _load_for(model, image_size)
    return Embedder(
        name=bundled_name(model) or _name(model),
        classifier=classifier,
        readout=Readout(classifier.model, kind=kind, layer=layer),
        batch_size=batch_size,
        workers=workers,
    )


def _name(model: str | os.PathLike[str]) -> str:
    """By which the model is found again from anywhere."""
    return os.path.abspath(model) if os.path.exists(model) else os.fspath(model)


def _load_for(model: str | os.PathLike[str], size: Size | None) -> Classifier:
    """The model as it is where it takes that size already: so that it is known as the same."""
    classifier = load(model)
    if size is None or pair(size) == classifier.preprocessing.size:
        return classifier
    if not isinstance(classifier.model, VisionTransformer):
        height, width = classifier.preprocessing.size
        raise InputError(
            f"image_size {size} for {os.fspath(model)}, which is no Vision Transformer; "
            f"valid: its own, {height}x{width}"
        )
    return load(model, image_size=size)


def _check_finite(features: Tensor) -> None:
    if not features.isfinite().all():
        raise InputError(
            "features that are not finite; valid: a model whose weights have not diverged"
        )


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
