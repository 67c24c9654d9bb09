"""`vitlab predict`: what is on images, however many, written down as it is found."""

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from vitlab.contact_sheet import check_name
from vitlab.errors import InputError, VitlabError
from vitlab.inference.open_model import Answering, open_answering
from vitlab.inference.pictures import Picture, path_of, read_picture, reading
from vitlab.inference.predictor import Prediction, Predictor
from vitlab.tasks.image_inputs import ImageInputs
from vitlab.tasks.kept_export import kept_export
from vitlab.tasks.prediction_files import PredictionFile, check_output, open_predictions
from vitlab.tasks.prediction_job import Job, read_job
from vitlab.tasks.prediction_records import as_text
from vitlab.tasks.prediction_sheet import SHOWN, write_sheet
from vitlab.weights.labels import Labels

log = logging.getLogger(__name__)

Watch = Callable[[int, int | None], None]
"""Told how many images are done, and of how many as soon as that is known."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What came of it."""

    images: int
    """Of the whole job, with what was done before."""
    failed: int
    done_before: int
    seconds: float


def predict(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    top: int = 5,
    threshold: float | None = None,
    output: Path | None = None,
    overwrite: bool = False,
    contact_sheet: Path | None = None,
    labels: Labels | None = None,
    batch_size: int | None = None,
    merge_tokens: int = 0,
    max_pixels: int | None = None,
    engine: str = "auto",
    each: Callable[[Prediction], None] = lambda prediction: None,
    watch: Watch | None = None,
    stdin: Callable[[], BufferedIOBase] = lambda: cast(BufferedIOBase, sys.stdin.buffer),
    **changes: Any,
) -> Predicted:
    """Classify files, folders, patterns, and what `-` reads; `each` is told every prediction.

    `threshold` as in `Classifier.predict`, `merge_tokens`, `engine` and `changes` as in
    `open_answering`.
    With `output`, what is in the file already is not computed again. An image that cannot be read
    is a record with an `error`; where it is the only one, it is an InputError.
    """
    if top < 1:
        raise InputError(f"top {top}; valid: at least 1")
    for path, check in ((output, check_output), (contact_sheet, check_name)):
        if path is not None:
            check(path)
    inputs = ImageInputs(names=[os.fspath(name) for name in images], stdin=stdin)
    if inputs.single and batch_size is None:
        batch_size = 1
    if engine == "auto" and output is not None and not overwrite:
        begun = read_job(output)
        engine = engine if begun is None else begun.engine  # or the job could not be continued
    plain = not changes and not merge_tokens
    answering = _open(
        model,
        kept_export(model, engine=engine, images=inputs.count) if plain else None,
        engine=engine,
        labels=labels,
        merge_tokens=merge_tokens,
        quickly=inputs.single,
        **changes,
    )
    job = _Job(
        model=os.fspath(model),
        answering=answering,
        inputs=inputs,
        top=top,
        threshold=threshold,
        sheet=contact_sheet,
        each=each,
        watch=watch,
    )
    with reading(max_pixels):
        pictures = job.begin()
        if output is None:
            return job.run(pictures, batch_size)
        asked = job.describe(batch_size)
        with open_predictions(output, asked, batch_size=batch_size, overwrite=overwrite) as file:
            return job.run(pictures, file.job.batch_size, file)


def _open(
    model: str | os.PathLike[str], exported: Path | None, *, engine: str, **options: Any
) -> Answering:
    """The model by the file that was made of it, or by itself if `auto` cannot read that one."""
    if exported is not None:
        try:
            return open_answering(exported, engine=engine, **options)
        except VitlabError as error:
            if engine != "auto":
                raise
            log.warning("%s; %s itself is used", error, os.fspath(model))
    return open_answering(model, engine=engine, **options)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A model, what it is asked, and whom it tells."""

    model: str
    answering: Answering
    inputs: ImageInputs
    top: int
    threshold: float | None
    sheet: Path | None
    each: Callable[[Prediction], None]
    watch: Watch | None

    def begin(self) -> Iterator[Picture]:
        """The pictures, of which there is one at least; a lone file must be readable."""
        pictures = self.inputs.find()
        first = list(islice(pictures, 2))
        piped = isinstance(first[0], BytesIO)
        if piped and self.sheet is not None:
            raise InputError(f"{self.sheet} shows files; found an image through standard input")
        if len(first) == 1 and (self.inputs.single or piped):
            try:
                read_picture(first[0], self.answering.require_preprocessing())
            except InputError as error:
                name = "standard input" if piped else path_of(first[0])
                raise InputError(f"{name}: {error}") from error
        return chain(first, pictures)

    def describe(self, batch_size: int | None) -> Job:
        """What must be the same when the job is continued."""
        predictor = self.predictor(batch_size)
        return Job(
            model=self.model,
            fingerprint=self.answering.fingerprint(),
            images=tuple(self.inputs.absolute),
            written=tuple(self.inputs.names),
            top=self.top,
            task=predictor.task,
            threshold=predictor.threshold if predictor.task == "multi-label" else None,
            batch_size=predictor.engine.batch_size,
            engine=self.answering.engine,
            merge_tokens=self.answering.merge_tokens,
        )

    def predictor(self, batch_size: int | None) -> Predictor:
        """What answers."""
        return self.answering.predictor(batch_size=batch_size, threshold=self.threshold)

    def run(
        self,
        pictures: Iterable[Picture],
        batch_size: int | None,
        file: PredictionFile | None = None,
    ) -> Predicted:
        """Predict what is left of the pictures; keep it, tell it, draw it."""
        start, before = time.monotonic(), 0 if file is None else file.count
        images, failed = before, 0 if file is None else file.failed
        shown = _first(file.records()) if file is not None and self.sheet else []
        left = pictures if file is None else _left(pictures, file.done.copy())
        total = _Total(self.inputs) if self.watch else None
        predictor = self.predictor(batch_size)
        for batch in predictor.stream(left, top=self.top, continued=before > 0):
            if file is not None:
                file.append(batch)
            images += len(batch)
            failed += sum(prediction.error is not None for prediction in batch)
            shown += batch[: SHOWN - len(shown)] if self.sheet else []
            for prediction in batch:
                self.each(prediction)
            if self.watch and total:
                self.watch(images, total.found)
        if file is not None:
            file.finish()
        seconds = time.monotonic() - start  # drawing is not predicting
        if self.sheet is not None:
            write_sheet(self.sheet, shown, images=images, model=self.model)
        return Predicted(images=images, failed=failed, done_before=before, seconds=seconds)


class _Total:
    """How many images there are, counted while the first of them are at work."""

    def __init__(self, inputs: ImageInputs) -> None:
        self.found: int | None = None
        self._inputs = inputs
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        with suppress(OSError, InputError):  # whoever reads the images meets it, and says it
            self.found = self._inputs.count()


def _left(pictures: Iterable[Picture], done: Counter[str | None]) -> Iterator[Picture]:
    """The pictures that are not done; one that is named twice counts twice."""
    for picture in pictures:
        path = as_text(path_of(picture))
        if done[path]:
            done[path] -= 1
        else:
            yield picture


def _first(records: Iterable[Prediction]) -> list[Prediction]:
    return list(islice(records, SHOWN))
