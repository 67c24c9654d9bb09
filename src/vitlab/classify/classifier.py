"""`vitlab.load` and `Classifier`: weights, preprocessing and labels, computed by any engine.

Imports no torch by itself: exported models are computed without it.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.engines.runtimes import ENGINES, onnx_engine
from vitlab.classify.exported import (
    ExportedModel,
    StaleExport,
    check_merging,
    open_beside,
    open_exported,
)
from vitlab.classify.predictor import Engine, Prediction, Predictor
from vitlab.errors import InputError, MissingExtra, UnknownName, VitlabError, WeightsError
from vitlab.images.pixels import Given, as_image, as_images, is_single, reading
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.device import check_weights, may_have_accelerator
from vitlab.objectives.objective import objective_of
from vitlab.task import TEMPLATE, THRESHOLD
from vitlab.weights.bundle import ONNX, is_bundle
from vitlab.weights.labels import Labels, read_labels
from vitlab.weights.reading import SUFFIXES
from vitlab.weights.resolve import Checkpoint, resolve
from vitlab.weights.source import WeightSource

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from vitlab.classify.zeroshot import TextEncoder
    from vitlab.explain.explanation import Explanation
    from vitlab.models.cost import Footprint
    from vitlab.weights.preparation import Stated

EngineName = Literal["auto", "torch", "onnxruntime", "openvino", "aoti"]
FILES = {".onnx": ENGINES, ".pt2": ("aoti",)}
"""Engines that run an exported file, by its ending; the first is the default."""
EXTRAS = {"onnxruntime": "export", "openvino": "openvino"}
"""Extra of the package that installs an engine."""

log = logging.getLogger(__name__)


class Classifier:
    """A model with everything that it needs to classify image files, in one of the engines.

    `engine` is `torch` for a network, which `model` holds; the others compute the file of an
    exported model, which `exported` holds, and only predict.
    """

    def __init__(
        self, model: "nn.Module | ExportedModel", source: WeightSource, *, merge_tokens: int = 0
    ) -> None:
        """`merge_tokens` as in `load`; an exported model merges as many as it was exported with."""
        self.source = source
        self.model: Any = None
        self.exported: ExportedModel | None = None
        self._footprint: Footprint | None = None
        self._text: TextEncoder | None = None
        if isinstance(model, ExportedModel):
            self.engine, self.exported = model.engine, model
            self.merge_tokens = model.metadata.facts.merge_tokens
            self.labels = source.labels or ()
            return
        self.engine, self.merge_tokens = "torch", merge_tokens
        self.model = model.eval()
        if merge_tokens:
            from vitlab.models.merging import merging

            self.model = merging(model, merge_tokens)
        classes: int = self.model.config.classes
        self.labels = source.labels or tuple(str(number) for number in range(classes))
        if len(self.labels) != classes:
            raise VitlabError(f"{len(self.labels)} labels for {classes} classes")

    @property
    def preprocessing(self) -> Preprocessing:
        """Preparation of images for the model; raises if it is unknown."""
        return self.source.require_preprocessing()

    def predict(
        self,
        images: Given | Iterable[Given],
        *,
        top: int = 5,
        batch_size: int | None = None,
        threshold: float | None = None,
    ) -> list[Prediction]:
        """Labels with probabilities, in the order of the images; unreadable ones have an `error`.

        An image is a path, a PIL image, a NumPy array [H, W, C] or [H, W], or the bytes of a file;
        anything else is a TypeError.
        For a multi-label model, every label with a probability of at least `threshold`, whatever
        `top`; None: `vitlab.task.THRESHOLD`. Other models accept no threshold.
        """
        if top < 1:
            raise InputError(f"top {top} must be at least 1")
        size = 1 if is_single(images) and batch_size is None else batch_size
        with reading():
            predictor = self.predictor(batch_size=size, threshold=threshold)
            batches = predictor.stream(as_images(images, predictor.preprocessing), top=top)
            return [prediction for batch in batches for prediction in batch]

    def zeroshot(
        self,
        images: Given | Iterable[Given],
        labels: Sequence[str],
        *,
        templates: str | Sequence[str] = TEMPLATE,
        top: int = 5,
        batch_size: int | None = None,
        threshold: float | None = None,
    ) -> list[Prediction]:
        """Predictions of a CLIP or SigLIP for labels that are texts.

        A label replaces `{}` in each of the templates, whose embeddings are averaged. CLIP's
        probabilities add up to one; each of SigLIP's stands alone: the `top` labels, or all with a
        probability of at least `threshold`.
        """
        classifier = self.for_labels(labels, templates=templates)
        if threshold is not None or classifier.source.task == "single-label":
            return classifier.predict(images, top=top, batch_size=batch_size, threshold=threshold)
        found = classifier.predict(images, top=top, batch_size=batch_size, threshold=0.0)
        return [replace(prediction, top=prediction.top[:top]) for prediction in found]

    def for_labels(
        self,
        labels: Sequence[str],
        *,
        templates: str | Sequence[str] = TEMPLATE,
        watch: Callable[[str, int, int], None] | None = None,
    ) -> "Classifier":
        """Classifier of a CLIP or SigLIP for labels that are texts, without its text tower."""
        from vitlab.classify.prompts import check_labels, check_templates

        labels, templates = check_labels(labels), check_templates(templates)
        self._require_torch("zeroshot")
        from vitlab.classify.zeroshot import with_labels

        plain = self.model.model if self.merge_tokens else self.model
        model = with_labels(plain, self.text, labels, templates, watch)
        return Classifier(model, model.source, merge_tokens=self.merge_tokens)

    @property
    def text(self) -> "TextEncoder":
        """Text tower of a CLIP or SigLIP with its tokenizer, read at its first use."""
        if self._text is None:
            self._require_torch("text")
            from vitlab.classify.zeroshot import open_text

            plain = self.model.model if self.merge_tokens else self.model
            self._text = open_text(plain, self.source)
        return self._text

    def predictor(
        self, *, batch_size: int | None = None, threshold: float | None = None
    ) -> Predictor:
        """Stream of images through the engine; None: batches that suit model and machine."""
        self.source.require_head()
        if not self.labels:
            raise WeightsError(f"{self.source.path.name} has no head; valid: a classifier")
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be at least 1")
        if threshold is not None:
            _check_threshold(self.source, threshold)
        return Predictor(
            preprocessing=self.preprocessing,
            engine=self._open_engine(batch_size),
            labels=self.labels,
            task=self.source.task,
            threshold=THRESHOLD if threshold is None else threshold,
        )

    def _open_engine(self, batch_size: int | None) -> Engine:
        if self.exported is not None:
            return self.exported.session(self.source, batch_size=batch_size)
        from vitlab.classify.engines.torch import TorchEngine

        return TorchEngine(
            self.model,
            self.probabilities,
            self.preprocessing,
            footprint=self._measured,
            batch_size=batch_size,
        )

    def _measured(self) -> "Footprint":
        """Memory that an image takes in the model; measured again if the model has changed."""
        from vitlab.models.cost import Footprint

        if self._footprint is None or not self._footprint.is_of(self.model):
            self._footprint = Footprint(self.model)
        return self._footprint

    def fingerprint(self) -> str:
        """Digest that is equal for models with the same predictions and labels."""
        if self.exported is not None:
            return self.exported.fingerprint(self.preprocessing, self.labels)
        from vitlab.weights.source import network_digest

        return network_digest(self.model, self.preprocessing.to_json(), self.labels)

    def probabilities(self, images: "Tensor") -> "Tensor":
        """Probabilities, or values of a regression, of preprocessed images [B, C, H, W]."""
        self._require_torch("probabilities")
        from vitlab.classify.engines.torch import compute

        return compute(self.model, images, self.activate)

    def activate(self, logits: "Tensor") -> "Tensor":
        """Probabilities, or values of a regression, from the output of the model."""
        found: Tensor = objective_of(self.source.task).activate(logits)
        return found

    def features(
        self,
        images: Given | Iterable[Given],
        *,
        kind: str = "pooled",
        layer: int | None = None,
        batch_size: int = 32,
    ) -> NDArray[np.float32]:
        """Features of images: `pooled`, `embedding` or `cls` vectors, or grids of `patches`.

        Without `layer`, the output of the last LayerNorm; with it, of that block before it.
        """
        self._require_torch("features")
        from vitlab.classify.engines.torch import image_features
        from vitlab.models.features import Readout

        readout = Readout(self.model, kind=kind, layer=layer)
        return image_features(readout, self.preprocessing, images, batch_size=batch_size)

    def explain(
        self,
        image: Given,
        *,
        method: str = "relevance",
        target: str | int | None = None,
        layer: int | None = None,
        head: int | None = None,
        token: tuple[int, int] | None = None,
        each: str | None = None,
    ) -> "Explanation":
        """Explanation of a prediction: maps by patch and by pixel, and a figure on request.

        `target` is the class that the map is about, by name or number; None: the likeliest. The
        other keywords are those of `vitlab.explain.request.Ask`.
        """
        self._require_torch("explain")
        place: Any = {"layer": layer, "head": head, "token": token, "each": each}
        picture = as_image(image, self.preprocessing)
        return self.explain_many([picture], method=method, target=target, **place)[0]

    def explain_many(
        self,
        images: Given | Iterable[Given],
        *,
        method: str = "relevance",
        target: str | int | None = None,
        layer: int | None = None,
        head: int | None = None,
        token: tuple[int, int] | None = None,
        each: str | None = None,
        batch_size: int | None = None,
    ) -> "list[Explanation]":
        """Explanations of many images; `batch_size` None: as many at once as take little memory."""
        self._require_torch("explain_many")
        from vitlab.classify.explainer import Explainer
        from vitlab.explain.request import ExplainRequest

        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be at least 1")
        place: Any = {"layer": layer, "head": head, "token": token, "each": each}
        explainer = Explainer(self, ExplainRequest(method=cast(Any, method), **place), target)
        pictures = as_images(images, self.preprocessing)
        with reading():
            return list(explainer.stream(map(explainer.read, pictures), batch_size))

    def _require_torch(self, wanted: str) -> None:
        if self.exported is not None:
            raise InputError(
                f"{wanted} needs the inside of a model, and the engine {self.engine} only "
                f'predicts; valid: the weights with engine="torch"'
            )


def _check_threshold(source: WeightSource, threshold: float) -> None:
    if objective_of(source.task).prediction != "likely":
        raise InputError(
            f"threshold {threshold} is for multi-label models; {source.path.name} is a "
            f"{source.task} one"
        )
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold {threshold}; valid: from 0 to 1")


def load(
    path: str | os.PathLike[str],
    *,
    labels: Labels | None = None,
    merge_tokens: int = 0,
    engine: str = "torch",
    device: "str | torch.device | None" = None,
    **changes: Any,
) -> Classifier:
    """Classifier from a run, a bundle, a weight file or its folder, or a name.

    Names are those of models inside the package and of fetched checkpoints.

    `labels` names the classes: `imagenet-1k`, a file with one name a line, or the names.
    `merge_tokens` patches become part of another in each block: faster, and a little less exact.
    `engine` computes, as in `vitlab predict`: every engine predicts, only torch has features
    and explanations. `auto` and the others accept exported files, too.
    `device` is torch's, or `auto` for the best one; None: the CPU with `engine="torch"`, else the
    best one.
    `changes` are those of `load_weights`, `preprocessing` among them.
    """
    options: Any = {"labels": labels, "merge_tokens": merge_tokens, **changes}
    if engine == "torch":
        return _placed(_load_torch(resolve(path), **options), device or "cpu")
    return _placed(open_classifier(path, engine=engine, **options), device)


def _placed(classifier: Classifier, device: "str | torch.device | None") -> Classifier:
    """The classifier with its model on the device."""
    if device is None:
        return classifier
    if classifier.exported is not None:
        raise InputError(
            f"device {str(device)!r} is for torch, and the engine {classifier.engine} computes on "
            f'the CPU; valid: engine="torch", or no device'
        )
    from vitlab.machine.device import device_named

    classifier.model.to(device_named(device))
    return classifier


def open_classifier(
    model: str | os.PathLike[str],
    *,
    engine: str = "auto",
    labels: Labels | None = None,
    merge_tokens: int = 0,
    quickly: bool = False,
    **changes: Any,
) -> Classifier:
    """Classifier from a path, an exported file or a name, on the best device for prediction.

    `auto` is the faster runtime (`onnx_engine`) if there is an ONNX file of the model and no
    accelerator, else torch; with `quickly`, the runtime that starts sooner. An exported file merges
    as many tokens as it was exported with; another number of `merge_tokens` raises. `changes` are
    those of `load_weights`, and need torch.
    """
    if engine not in get_args(EngineName):
        raise UnknownName("engine", engine, get_args(EngineName))
    if Path(model).suffix in FILES:
        return _open_file(Path(model), engine, labels, merge_tokens, changes, quickly=quickly)
    place = resolve(model)
    folder = None if changes else _exported(place)
    chosen = _best_engine(folder, quickly=quickly) if engine == "auto" else engine
    if folder is not None and chosen not in ("torch", "aoti"):
        try:
            found = open_beside(folder, engine=chosen, merge_tokens=merge_tokens)
            return _of_file(found, labels)
        except StaleExport as error:
            if engine != "auto":
                raise
            if not merge_tokens:  # with merging, a file without it is to be expected
                log.warning("%s; torch computes instead", error)
            chosen = "torch"
    if chosen == "torch":
        check_weights(os.fspath(model), stored_bytes(place))
        classifier = _load_torch(place, labels=labels, merge_tokens=merge_tokens, **changes)
        from vitlab.machine.device import best_device

        classifier.model.to(best_device())
        return classifier
    if engine in EXTRAS and find_spec(engine) is None:
        raise MissingExtra(EXTRAS[engine], f"the engine {engine}")
    kind = "aoti" if engine == "aoti" else "onnx"
    option = f" --merge-tokens {merge_tokens}" if merge_tokens else ""
    raise InputError(
        f"the engine {engine} needs an exported file: "
        f"`vitlab export {os.fspath(model)}{option} --format {kind} --output FILE{_ending(engine)}`"
        f", then FILE{_ending(engine)} instead of {os.fspath(model)}"
    )


def _load_torch(
    place: Checkpoint | Path,
    *,
    labels: Labels | None = None,
    merge_tokens: int = 0,
    preprocessing: "Stated | None" = None,
    **changes: Any,
) -> Classifier:
    """Classifier in torch from the result of `vitlab.weights.resolve`."""
    if isinstance(place, Path) and is_bundle(place) and not changes:
        from vitlab.weights.bundle import load_bundle

        model, source = load_bundle(place)
        if labels is not None:
            classes: int = cast(Any, model).config.classes
            source = cast(Any, model).source = replace(source, labels=read_labels(labels, classes))
        if preprocessing is not None:
            from vitlab.weights.preparation import stating

            config = cast(Any, model).config
            source = cast(Any, model).source = stating(source, preprocessing, config)
        return Classifier(model, source, merge_tokens=merge_tokens)
    from vitlab.weights.load import load_weights

    stored = place if isinstance(place, Path) else place.name
    loaded = load_weights(stored, labels=labels, preprocessing=preprocessing, **changes)
    return Classifier(loaded, loaded.source, merge_tokens=merge_tokens)


def stored_bytes(place: Checkpoint | Path) -> int:
    """Size of the weight files that are about to be read; 0 for a published checkpoint."""
    if not isinstance(place, Path):
        return 0
    files = place.glob("*") if place.is_dir() else (place,)
    return sum(file.stat().st_size for file in files if file.suffix in SUFFIXES and file.is_file())


def _open_file(
    path: Path,
    engine: str,
    labels: Labels | None,
    merge_tokens: int,
    changes: dict[str, Any],
    *,
    quickly: bool,
) -> Classifier:
    valid = FILES[path.suffix]
    if engine not in ("auto", *valid):
        raise InputError(f"{path} is not for the engine {engine}; valid: {', '.join(valid)}")
    if changes:
        raise InputError(f"{path} is fixed: {min(changes)} cannot be changed any more")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    chosen = engine
    if engine == "auto":
        chosen = valid[0]
        if path.suffix == ".onnx":
            chosen = onnx_engine(path, quickly=quickly) or chosen
    found = open_exported(path, engine=chosen)
    if merge_tokens:
        check_merging(path, found.metadata.facts.merge_tokens, merge_tokens)
    return _of_file(found, labels)


def _of_file(found: ExportedModel, labels: Labels | None) -> Classifier:
    """Classifier of an exported model, with other names for its classes if they are given."""
    source = found.source()
    if labels is not None:
        source = replace(source, labels=read_labels(labels, len(source.labels or ())))
    return Classifier(found, source)


def _best_engine(folder: Path | None, *, quickly: bool) -> str:
    """Engine for a bundle with an ONNX file, or for a model without one (None)."""
    engine = None if folder is None else onnx_engine(folder / ONNX, quickly=quickly)
    return "torch" if engine is None or may_have_accelerator() else engine


def _exported(place: Checkpoint | Path) -> Path | None:
    """Folder of the bundle, if it holds an ONNX file."""
    if not (isinstance(place, Path) and place.is_dir() and is_bundle(place)):
        return None
    return place if (place / ONNX).is_file() else None


def _ending(engine: str) -> str:
    return next(suffix for suffix, engines in FILES.items() if engine in engines)
