"""Which images a model tells right."""

from pathlib import Path

from vitlab.data.images import ImageSet
from vitlab.data.loader import batches_for_evaluation
from vitlab.evaluate.classify import collect
from vitlab.inference.classifier import Classifier
from vitlab.tasks.job import evaluation_batch
from vitlab.tasks.job_machine import best_device


def told_right(
    classifier: Classifier, images: ImageSet, *, broken: dict[Path, str] | None = None
) -> tuple[bool, ...]:
    """Whether each image is; files that cannot be read are left out, and go to `broken`."""
    device = best_device()
    batches = batches_for_evaluation(
        images,
        batch_size=evaluation_batch(classifier.model.config),
        preprocessing=classifier.preprocessing,
        device=device,
        workers=0,
        broken={} if broken is None else broken,
    )
    outcome = collect(classifier.model.to(device), batches)
    assert outcome.right is not None
    return outcome.right
