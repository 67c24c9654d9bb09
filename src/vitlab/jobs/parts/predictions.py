"""`vitlab predict --parts` and `--merge`: predictions of very many images, part by part."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitlab.classify.classifier import Classifier, open_classifier
from vitlab.classify.predictor import Prediction
from vitlab.config import from_dict, to_dict
from vitlab.errors import FileError
from vitlab.images.open import pixel_limit
from vitlab.images.pixels import reading
from vitlab.io.files import replacing
from vitlab.jobs.parts.on_ray import computing
from vitlab.jobs.parts.parts import (
    MOST_THREADS,
    Done,
    Each,
    ImageList,
    Parts,
    Share,
    Watch,
    check_overwrite,
    checked,
    list_inputs,
    work_on,
)
from vitlab.jobs.predict import ImageInputs, Predicted, no_stdin
from vitlab.jobs.prediction_files import (
    FORMATS,
    PARQUET,
    PredictionManifest,
    check_output,
    continued,
    write_parquet,
)
from vitlab.jobs.prediction_records import JsonLines, whole_records
from vitlab.objectives.objective import objective_of
from vitlab.task import Task

ENDING = ".jsonl"


def parts_of(output: Path) -> Parts:
    """Parts of a file of predictions."""
    return Parts(output=output, ending=ENDING)


@dataclass(frozen=True, kw_only=True)
class PredictionParts:
    """An open classifier and the images of a job in parts."""

    parts: Parts
    images: ImageList
    classifier: Classifier
    manifest: PredictionManifest

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        images: Sequence[str | os.PathLike[str]],
        *,
        output: Path,
        top: int = 5,
        threshold: float | None = None,
        overwrite: bool = False,
        batch_size: int | None = None,
        engine: str = "auto",
        max_pixels: int | None = None,
        **options: Any,
    ) -> "PredictionParts":
        """Begin the job, or join others that work on it; `options` as in `open_classifier`."""
        check_output(output)
        parts = parts_of(output)
        inputs = ImageInputs(names=[os.fspath(name) for name in images], stdin=no_stdin)
        begun = (parts.folder / "parts.json").exists() and not overwrite
        if begun and engine == "auto":
            engine = str(parts.settings["settings"].get("engine", engine))
        _one_thread_a_batch()
        classifier = open_classifier(model, engine=engine, **options)
        manifests: list[PredictionManifest] = []

        def settle(before: dict[str, Any] | None) -> dict[str, Any]:
            size = batch_size if before is None else int(before["batch_size"])
            predictor = classifier.predictor(batch_size=size, threshold=threshold)
            manifest = PredictionManifest(
                model=os.fspath(model),
                fingerprint=classifier.fingerprint(),
                images=tuple(inputs.absolute),
                written=tuple(inputs.names),
                top=top,
                task=predictor.task,
                threshold=predictor.threshold
                if objective_of(predictor.task).prediction == "likely"
                else None,
                batch_size=predictor.engine.batch_size,
                engine=classifier.engine,
                merge_tokens=classifier.merge_tokens,
                max_pixels=pixel_limit() if max_pixels is None else max_pixels,
            )
            if before is not None:
                first = from_dict(PredictionManifest, before)
                _check_batch(manifest.batch_size, first.batch_size)
                manifest = continued(manifest, first, output, batch_size=batch_size)
            manifests.append(manifest)
            return to_dict(manifest)

        found = parts.begin(
            lambda: list_inputs(inputs.names, inputs.find), settle, overwrite=overwrite
        )
        return cls(
            parts=parts,
            images=found,
            classifier=classifier,
            manifest=manifests[0],
        )

    def compute(self, number: int) -> Iterator[Done]:
        """Write a part; yields after each batch."""
        manifest, written = self.manifest, JsonLines(self.manifest.task)
        predictor = self.classifier.predictor(
            batch_size=manifest.batch_size, threshold=manifest.threshold
        )
        pictures = self.images.pictures(*self.parts.bounds(number))
        with reading(manifest.max_pixels), replacing(self.parts.path(number)) as file:
            for batch in predictor.stream(pictures, top=manifest.top, continued=True):
                file.write(b"".join(map(written.encode, batch)))
                failed = [(p.path, p.error) for p in batch if p.error is not None]
                yield checked(Done(len(batch), failed))


def _check_batch(found: int, wanted: int) -> None:
    """Raise where memory lets fewer images be computed at once: their last bits would differ."""
    if found != wanted:
        raise FileError(f"the parts are computed {wanted} images at once; {found} fit into memory")


def _one_thread_a_batch() -> None:
    """Let each batch be computed by one thread, on every machine."""
    import torch

    if torch.get_num_threads() > MOST_THREADS:
        torch.set_num_threads(MOST_THREADS)


def predict_parts(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    output: Path,
    part: str | None = None,
    ray: str | None = None,
    overwrite: bool = False,
    each: Each = lambda path, reason: None,
    watch: Watch | None = None,
    **options: Any,
) -> Predicted:
    """Compute the parts of this process that are not there; `each` gets unreadable images.

    `part` is a share such as `3/16`; None: all. The processes of a launcher divide it. `ray` is the
    address of a cluster that computes them.
    """
    share = Share.parse(part)
    check_overwrite(share, overwrite=overwrite)
    open_job = partial(PredictionParts.open, model, images, output=output, **options)
    job = open_job(overwrite=overwrite)
    return work_on(job.parts, share, computing(job, open_job, ray), each=each, watch=watch)


def merge_predictions(output: Path) -> Predicted:
    """Join the parts in order; the parts stay."""
    check_output(output)
    parts, began = parts_of(output), time.monotonic()
    task = from_dict(PredictionManifest, parts.settings["settings"]).task
    parts.check_complete()
    count = failed = 0

    def records() -> Iterator[Prediction]:
        nonlocal count, failed
        for number in range(parts.count):
            for prediction in _records(parts, number, task):
                count += 1
                failed += prediction.error is not None
                yield prediction

    if output.suffix.lower() == PARQUET:
        write_parquet(output, records(), task)
    else:
        written = FORMATS[output.suffix.lower()](task)
        with replacing(output) as file:
            file.write(written.header)
            file.writelines(map(written.encode, records()))
    return Predicted(images=count, failed=failed, done_before=0, seconds=time.monotonic() - began)


def _records(parts: Parts, number: int, task: Task) -> Iterator[Prediction]:
    path, count = parts.path(number), 0
    try:
        with path.open("rb") as file:
            for _, prediction in whole_records(file, JsonLines(task)):
                count += 1
                yield prediction
    except (ValueError, OSError) as error:
        raise FileError(f"{path}: not a part of predictions ({error}); remove it") from error
    if count != parts.length(number):
        raise FileError(
            f"{path}: {count} predictions instead of {parts.length(number)}; remove it, and run "
            "the command again"
        )
