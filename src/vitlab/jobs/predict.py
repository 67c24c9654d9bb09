"""`vitlab predict`: what is on images, however many, written down as it is found."""

import io
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
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, cast

from vitlab.classify.open_model import Answering, open_answering
from vitlab.classify.predictor import Prediction, Predictor
from vitlab.errors import InputError, VitlabError
from vitlab.images.contact_sheet import LIMIT, Tile, check_name, write_contact_sheet
from vitlab.images.find import ENDINGS, in_blocks, matching, pointed_at, walk_images
from vitlab.images.pixels import Decoded, Picture, path_of, read_picture, reading
from vitlab.images.statistics import tile_image
from vitlab.jobs.kept_export import kept_export
from vitlab.jobs.prediction_files import PredictionFile, check_output, open_predictions
from vitlab.jobs.prediction_manifest import Job, read_job
from vitlab.jobs.prediction_records import as_text
from vitlab.weights.labels import Labels

# The contact sheet of a job: its images with what the model sees on them.

SHOWN = LIMIT
"""Images of a job that a sheet shows."""


def write_sheet(path: Path, shown: Sequence[Prediction], *, images: int, model: str) -> None:
    """Draw the first images of a job, and say how many more it has."""
    tiles = [_tile(prediction) for prediction in shown]
    more = repeat(tiles[-1], images - len(tiles))
    title = f"{images:,} image{'s' * (images != 1)}, labelled by {Path(model).name}"
    write_contact_sheet(path, chain(tiles, more), title=title)


def _tile(prediction: Prediction) -> Tile:
    file = Path(prediction.path or "")
    if prediction.error is not None:
        return Tile(image=file, caption=f"cannot be read\n{file.name}", mark="bad")
    if prediction.label is None:
        told = "\n".join(prediction.answers[:2]) or "no label"
        return Tile(image=tile_image(file), caption=f"{told}\n{file.name}")
    caption = f"{prediction.label}\n{prediction.probability:.1%} · {file.name}"
    return Tile(image=tile_image(file), caption=caption)


# Which images a command means: files, folders, patterns, and what comes through standard input.

STDIN = "-"
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF87a", b"GIF89a", b"RIFF", b"BM", b"%PDF-")
"""First bytes of pictures, up to the first that could be the end of a line."""


@dataclass(frozen=True, kw_only=True)
class ImageInputs:
    """What was named; the images themselves are found while they are asked for."""

    names: Sequence[str]
    stdin: Callable[[], io.BufferedIOBase]
    """Where `-` reads: an image, or the path of one on each line."""

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("no images named; valid: image files, folders, patterns or -")
        if self.names.count(STDIN) > 1:
            raise InputError("- is standard input, which can be read once; found more than one")
        for name in self.names:
            _check(name)

    @property
    def absolute(self) -> list[str]:
        """The names as they mean the same from any folder."""
        return [name if name == STDIN else os.path.abspath(name) for name in self.names]

    @property
    def single(self) -> bool:
        """Whether one file is meant, and not what may be found somewhere."""
        return len(self.names) == 1 and pointed_at(self.names[0]) == "file"

    def find(self) -> Iterator[Picture]:
        """The images one after the other, in an order that is the same each time."""
        for name in self.names:
            if name != STDIN:
                next(iter(self._find(name)))  # an error now, and not when half of the work is done
        return chain.from_iterable(map(self._find, self.names))

    def count(self, most: int | None = None) -> int | None:
        """How many there are, found by looking for them; unknown for standard input.

        No more than `most` are looked for.
        """
        if STDIN in self.names:
            return None
        return sum(1 for _ in islice(self.find(), most))

    def _find(self, name: str) -> Iterable[Picture]:
        if name == STDIN:
            return _piped(self.stdin())
        kind = pointed_at(name)
        if kind == "folder":
            return _some(
                walk_images(name), f"{name} holds no image files; valid endings: {ENDINGS}"
            )
        if kind == "file":
            return [name]
        return _some(in_blocks(matching(name)), f"{name} matches no file")


def _check(name: str) -> None:
    if name != STDIN and pointed_at(name) == "nothing":
        raise InputError(f"{name}: no such file or folder")


def _some(paths: Iterator[str], message: str) -> Iterator[str]:
    """The paths, of which there must be one."""
    first = next(paths, None)
    if first is None:
        raise InputError(message)
    yield first
    yield from paths


def _piped(stream: io.BufferedIOBase) -> Iterator[Picture]:
    """One picture, or the paths that the lines give, as they come."""
    start = stream.readline()
    if _is_picture(start):
        yield io.BytesIO(start + stream.read())
        return
    lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in chain([start], stream))
    message = "standard input is empty; valid: an image, or one path a line"
    yield from _some((path for path in lines if path), message)


def _is_picture(start: bytes) -> bool:
    """Whether a stream that begins with this line holds a picture; no path holds a zero byte."""
    line = start.rstrip(b"\r\n")
    return b"\0" in line or (line.startswith(MAGIC) and not os.path.lexists(line))


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

    def begin(self) -> Iterator[Picture | Decoded]:
        """The pictures, of which there is one at least; a lone file must be readable."""
        pictures = self.inputs.find()
        first = list(islice(pictures, 2))
        piped = isinstance(first[0], BytesIO)
        if piped and self.sheet is not None:
            raise InputError(f"{self.sheet} shows files; found an image through standard input")
        if len(first) == 1 and (self.inputs.single or piped):
            try:
                pixels = read_picture(first[0], self.answering.source.require_preprocessing())
            except InputError as error:
                name = "standard input" if piped else path_of(first[0])
                raise InputError(f"{name}: {error}") from error
            return iter([Decoded(source=first[0], pixels=pixels)])
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
        pictures: Iterable[Picture | Decoded],
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


def _left(
    pictures: Iterable[Picture | Decoded], done: Counter[str | None]
) -> Iterator[Picture | Decoded]:
    """The pictures that are not done; one that is named twice counts twice."""
    for picture in pictures:
        path = as_text(path_of(picture))
        if done[path]:
            done[path] -= 1
        else:
            yield picture


def _first(records: Iterable[Prediction]) -> list[Prediction]:
    return list(islice(records, SHOWN))
