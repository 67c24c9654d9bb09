"""`vitlab zeroshot`: classify images by labels that are texts, or save them as a classifier."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlab import __version__
from vitlab.classify.classifier import Classifier, load
from vitlab.classify.predictor import Prediction
from vitlab.classify.prompts import check_labels, check_templates
from vitlab.errors import FileError, InputError
from vitlab.jobs.predict import Predicted, predict_with
from vitlab.jobs.predict import Watch as ImageWatch
from vitlab.task import TEMPLATE
from vitlab.weights.bundle import save_bundle
from vitlab.weights.resolve import title_of

TextWatch = Callable[[str, int, int], None]
"""Progress callback: name of the stage, number done, and total."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroShot:
    """Result of a zero-shot job."""

    labels: tuple[str, ...]
    templates: tuple[str, ...]
    task: str
    """`single-label` for a softmax over the labels, `multi-label` for a sigmoid for each."""
    predicted: Predicted | None
    """None without images."""
    saved: Path | None


def zeroshot(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    labels: Sequence[str],
    templates: Sequence[str] = (TEMPLATE,),
    top: int = 5,
    threshold: float | None = None,
    batch_size: int | None = None,
    save: Path | None = None,
    each: Callable[[Prediction], None] = lambda prediction: None,
    watch_texts: TextWatch | None = None,
    watch: ImageWatch | None = None,
    **changes: Any,
) -> ZeroShot:
    """Classify images by the embeddings of their labels; call `each` on every prediction.

    `labels`, `templates`, `top` and `threshold` are as in `Classifier.zeroshot`, `changes` as in
    `load_weights`. With `save`, the labels become a bundle of a plain classifier.
    """
    if top < 1:
        raise InputError(f"top {top}; valid: at least 1")
    if not images and save is None:
        raise InputError("no images and no bundle to save; valid: at least one of both")
    checked, filled = check_labels(labels), check_templates(templates)
    if save is not None:
        _check_new(save)
    classifier = load(model, device="auto", **changes).for_labels(
        checked, templates=filled, watch=watch_texts
    )
    if save is not None:
        _save(save, classifier, model=title_of(model), templates=filled)
    task, predicted = classifier.source.task, None
    if images:
        ranked = task == "multi-label" and threshold is None

        def take(prediction: Prediction) -> None:
            each(replace(prediction, top=prediction.top[:top]) if ranked else prediction)

        predicted = predict_with(
            classifier,
            images,
            model=model,
            top=top,
            threshold=0.0 if ranked else threshold,
            batch_size=batch_size,
            each=take,
            watch=watch,
        )
    return ZeroShot(labels=checked, templates=filled, task=task, predicted=predicted, saved=save)


def _check_new(folder: Path) -> None:
    """Raise for a folder with content, before anything is computed."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileError(f"{folder} exists; valid: a new or an empty folder")


def _save(folder: Path, classifier: Classifier, *, model: str, templates: Sequence[str]) -> None:
    """Write the labels as a bundle of a plain classifier."""
    source = classifier.source
    provenance = {"model": model, "templates": list(templates), "vitlab": __version__}
    save_bundle(
        folder,
        classifier.model if not classifier.merge_tokens else classifier.model.model,
        preprocessing=classifier.preprocessing,
        labels=classifier.labels,
        task=source.task,
        provenance=provenance | ({"licence": source.licence} if source.licence else {}),
    )
