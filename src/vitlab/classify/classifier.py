"""A model that classifies images: its weights, its preprocessing and its labels together."""

import io
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from vitlab.classify.batch_size import check_weights
from vitlab.classify.engines.torch import TorchEngine
from vitlab.classify.explainer import Explainer, Target
from vitlab.classify.predictor import Prediction, Predictor, build_predictor, predict_pictures
from vitlab.errors import InputError, VitlabError
from vitlab.explain.explanation import Explanation
from vitlab.explain.request import Ask, Each, Method
from vitlab.images.pixels import Given, Picture, as_picture, as_pictures, read_picture, reading
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.device import best_device
from vitlab.models.cost import Footprint
from vitlab.models.features import Readout
from vitlab.models.merging import merging
from vitlab.models.vit import logits_of
from vitlab.weights.bundle import load_bundle
from vitlab.weights.bundle_files import is_bundle
from vitlab.weights.digest import network_digest
from vitlab.weights.labels import Labels, read_labels
from vitlab.weights.load import load_weights
from vitlab.weights.published import Checkpoint, resolve
from vitlab.weights.reading import SUFFIXES
from vitlab.weights.source import WeightSource

# Features of images in memory or on a disk, a batch at a time.


def image_features(
    readout: Readout,
    preprocessing: Preprocessing,
    images: Given | Iterable[Given],
    *,
    batch_size: int,
) -> Float32[np.ndarray, "B ..."]:
    """The features of one image or of many, in their order; one that is unreadable is an error."""
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}; valid: at least 1")
    sources = iter(as_pictures(images, preprocessing))
    device = next(readout.model.parameters()).device
    found = []
    while batch := list(islice(sources, batch_size)):
        pixels = np.stack([_prepared(source, preprocessing) for source in batch])
        with torch.inference_mode():
            found.append(readout(torch.from_numpy(pixels).to(device)).float().cpu())
    if not found:
        raise InputError("no image; valid: at least 1")
    return torch.cat(found).numpy()


def _prepared(source: Picture, preprocessing: Preprocessing) -> Float32[np.ndarray, "C H W"]:
    if isinstance(source, io.BytesIO):
        return preprocessing.normalise(read_picture(source, preprocessing))
    return preprocessing.apply(source)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "single-label": lambda logits: logits.softmax(dim=-1),
    "multi-label": lambda logits: logits.sigmoid(),
    "regression": lambda values: values,
}
"""What makes an answer of a model's output, by task."""


class Classifier:
    """A model with all that it needs to answer for an image file."""

    engine = "torch"

    def __init__(self, model: nn.Module, source: WeightSource, *, merge_tokens: int = 0) -> None:
        """`merge_tokens` as in `load`."""
        self.model: Any = merging(model.eval(), merge_tokens)
        self.merge_tokens = merge_tokens
        self.source = source
        self._footprint: Footprint | None = None
        classes: int = cast(Any, model).config.classes
        self.labels = source.labels or tuple(str(number) for number in range(classes))
        if len(self.labels) != classes:
            raise VitlabError(f"{len(self.labels)} labels for {classes} classes")

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared; an error where nothing says it."""
        return self.source.require_preprocessing()

    def features(
        self,
        images: Given | Iterable[Given],
        *,
        kind: str = "pooled",
        layer: int | None = None,
        batch_size: int = 32,
    ) -> Float32[np.ndarray, "B ..."]:
        """What images are to the model: `pooled` or `cls` vectors, or grids of `patches`.

        Without `layer`, what comes out of the last LayerNorm; with it, of that block before it.
        """
        readout = Readout(self.model, kind=kind, layer=layer)
        return image_features(readout, self.preprocessing, images, batch_size=batch_size)

    def predict(
        self,
        images: Given | Iterable[Given],
        *,
        top: int = 5,
        batch_size: int | None = None,
        threshold: float | None = None,
    ) -> list[Prediction]:
        """Labels with probabilities, in the order of the images; a broken one does not stop it.

        An image is a path, a PIL image, a NumPy array [H, W, C] or [H, W], or the bytes of a file;
        anything else is a TypeError.
        Of a multi-label model, and of no other, every label from a probability of `threshold` on,
        whatever `top`; None: `vitlab.task.THRESHOLD`.
        """
        return predict_pictures(
            self.predictor, images, top=top, batch_size=batch_size, threshold=threshold
        )

    def predictor(
        self, *, batch_size: int | None = None, threshold: float | None = None
    ) -> Predictor:
        """What streams pictures through the model; None: batches that suit model and machine."""
        return build_predictor(
            self.source,
            self.labels,
            lambda: TorchEngine(
                self.model,
                self.probabilities,
                self.preprocessing,
                footprint=self._measured(),
                batch_size=batch_size,
            ),
            batch_size=batch_size,
            threshold=threshold,
        )

    def fingerprint(self) -> str:
        """The same for models that give the same answers in the same words."""
        return network_digest(self.model, self.preprocessing.to_json(), self.labels)

    def _measured(self) -> Footprint:
        """What an image takes in the model, measured anew only if that is another one by now."""
        if self._footprint is None or not self._footprint.is_of(self.model):
            self._footprint = Footprint(self.model)
        return self._footprint

    def probabilities(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """What the model believes of preprocessed images; the values that a regression tells."""
        if not (isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point()):
            raise TypeError(
                f"{type(images).__name__} is no preprocessed batch; valid: a float tensor "
                "[B, C, H, W] (`preprocessing.apply`); `predict` takes files and pixels"
            )
        with torch.inference_mode():
            return self.activate(logits_of(self.model)(images))

    def activate(self, logits: Float[Tensor, "*B classes"]) -> Float[Tensor, "*B classes"]:
        """What the output of the model means: probabilities, or values."""
        return ACTIVATIONS[self.source.task](logits)

    def explain(
        self,
        image: Given,
        *,
        method: Method = "relevance",
        target: Target | None = None,
        layer: int | None = None,
        head: int | None = None,
        token: tuple[int, int] | None = None,
        each: Each | None = None,
    ) -> Explanation:
        """What the model looks at: maps by patch and by pixel, and a figure on request.

        `target` is the class that the map is of, by name or number; None: the likeliest. The other
        keywords are those of `vitlab.explain.request.Ask`.
        """
        asked: Any = {"layer": layer, "head": head, "token": token, "each": each}
        picture = as_picture(image, self.preprocessing)
        return self.explain_many([picture], method=method, target=target, **asked)[0]

    def explain_many(
        self,
        images: Given | Iterable[Given],
        *,
        method: Method = "relevance",
        target: Target | None = None,
        layer: int | None = None,
        head: int | None = None,
        token: tuple[int, int] | None = None,
        each: Each | None = None,
        batch_size: int | None = None,
    ) -> list[Explanation]:
        """One question about many images; None: as many at once as take little memory."""
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be at least 1")
        ask = Ask(method=method, layer=layer, head=head, token=token, each=each)
        explainer = Explainer(self, ask, target)
        pictures = as_pictures(images, self.preprocessing)
        with reading():
            return list(explainer.stream(map(explainer.read, pictures), batch_size))


def load(
    path: str | os.PathLike[str],
    *,
    labels: Labels | None = None,
    merge_tokens: int = 0,
    **changes: Any,
) -> Classifier:
    """As `vitlab.load`, in torch."""
    return load_resolved(resolve(path), labels=labels, merge_tokens=merge_tokens, **changes)


def load_resolved(
    place: Checkpoint | Path, *, labels: Labels | None = None, merge_tokens: int = 0, **changes: Any
) -> Classifier:
    """Load what `vitlab.weights.published.resolve` found."""
    if isinstance(place, Path) and is_bundle(place) and not changes:
        model, source = load_bundle(place)
        if labels is not None:
            classes: int = cast(Any, model).config.classes
            source = cast(Any, model).source = replace(source, labels=read_labels(labels, classes))
        return Classifier(model, source, merge_tokens=merge_tokens)
    stored = place if isinstance(place, Path) else place.name
    loaded = load_weights(stored, labels=labels, **changes)
    return Classifier(loaded, loaded.source, merge_tokens=merge_tokens)


def load_fast(name: str, place: Checkpoint | Path, **options: Any) -> Classifier:
    """Load onto the best device; an error before weights that do not fit into memory are read."""
    check_weights(name, stored_bytes(place))
    classifier = load_resolved(place, **options)
    classifier.model.to(best_device())
    return classifier


def stored_bytes(place: Checkpoint | Path) -> int:
    """Size of the weight files that are about to be read; 0 for a published checkpoint."""
    if not isinstance(place, Path):
        return 0
    files = place.glob("*") if place.is_dir() else (place,)
    return sum(file.stat().st_size for file in files if file.suffix in SUFFIXES and file.is_file())
