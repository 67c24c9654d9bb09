"""`vitlab predict`: classify any number of images, and write the predictions batch by batch."""

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

from vitlab.classify.classifier import Classifier, open_classifier
from vitlab.classify.predictor import Prediction, Predictor
from vitlab.data.shards.layout import index_at
from vitlab.data.shards.store import SUFFIXES as SHARDS
from vitlab.data.shards.store import is_address
from vitlab.errors import InputError, VitlabError
from vitlab.exporting.cache import cached_export
from vitlab.images.contact_sheet import LIMIT, Tile, check_name, write_contact_sheet
from vitlab.images.find import ENDINGS, foreign_note, in_blocks, matching, pointed_at, walk_images
from vitlab.images.pixels import Decoded, ImageSource, path_of, read_image, reading
from vitlab.images.statistics import tile_image
from vitlab.jobs.prediction_files import (
    PredictionFile,
    PredictionManifest,
    check_output,
    open_predictions,
    read_job,
)
from vitlab.jobs.prediction_records import as_text
from vitlab.objectives.objective import objective_of
from vitlab.weights.labels import Labels
from vitlab.weights.reading import SUFFIXES

# The contact sheet: the first images with their predictions.

SHOWN = LIMIT
"""Maximum number of images on a contact sheet."""


def write_sheet(path: Path, shown: Sequence[Prediction], *, images: int, model: str) -> None:
    """Draw the first images with their predictions, and the number of the others."""
    tiles = [_tile(prediction) for prediction in shown]
    more = repeat(tiles[-1], images - len(tiles))
    title = f"{images:,} image{'s' * (images != 1)}, labelled by {Path(model).name}"
    write_contact_sheet(path, chain(tiles, more), title=title)


def _tile(prediction: Prediction) -> Tile:
    file = Path(prediction.path or "")
    if prediction.error is not None:
        return Tile(image=file, caption=f"cannot be read\n{file.name}", mark="bad")
    if prediction.label is None:
        labels = "\n".join(prediction.answers[:2]) or "no label"
        return Tile(image=tile_image(file), caption=f"{labels}\n{file.name}")
    caption = f"{prediction.label}\n{prediction.probability:.1%} · {file.name}"
    return Tile(image=tile_image(file), caption=caption)


# The images of a command: files, folders, patterns, and standard input.

STDIN, LIST = "-", "@"
"""Names of standard input, and of a file with one path a line (`@FILE`)."""
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF87a", b"GIF89a", b"RIFF", b"BM", b"%PDF-")
"""First bytes of image files, up to the first that could be the end of a line."""


@dataclass(frozen=True, kw_only=True)
class ImageInputs:
    """Names of the images of a command; the files are searched during iteration."""

    names: Sequence[str]
    stdin: Callable[[], io.BufferedIOBase]
    """Opener of the stream for `-`: an image, or the path of one on each line."""

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("no images named; valid: image files, folders, patterns or -")
        if self.names.count(STDIN) > 1:
            raise InputError("- is standard input, which can be read once; found more than one")
        for name in self.names:
            _check(name)

    @property
    def absolute(self) -> list[str]:
        """Names that are valid in any working directory."""
        return [_absolute(name) for name in self.names]

    @property
    def single(self) -> bool:
        """True if the only name is that of a file, not of a folder or a pattern."""
        return (
            len(self.names) == 1
            and pointed_at(self.names[0]) == "file"
            and not self.names[0].endswith(SHARDS)
        )

    def find(self) -> Iterator[ImageSource]:
        """Find the images, in an order that is the same each time."""
        for name in self.names:
            if name != STDIN:
                next(iter(self._find(name)))  # raises now, not when half of the work is done
        return chain.from_iterable(map(self._find, self.names))

    def count(self, most: int | None = None) -> int | None:
        """Number of images, counted up to `most`; None for standard input."""
        if STDIN in self.names:
            return None
        return sum(1 for _ in islice(self.find(), most))

    def _find(self, name: str) -> Iterable[ImageSource]:
        if name == STDIN:
            return _piped(self.stdin())
        if name.startswith(LIST):
            return _listed(name.removeprefix(LIST))
        kind = pointed_at(name)
        if kind == "file" and not name.endswith(SHARDS):
            return [name]
        index = index_at(name)
        if index is not None:
            return map(index.image, range(len(index)))
        if kind == "folder":
            return _some(
                walk_images(name), f"{name} holds no image files; valid endings: {ENDINGS}"
            )
        if kind == "file":
            return [name]
        return _some(in_blocks(matching(name)), f"{name} matches no file")


def _check(name: str) -> None:
    if name == STDIN or name.startswith(LIST) or pointed_at(name) != "nothing":
        return
    if not (is_address(name) or name.partition("#")[0].endswith(SHARDS)):
        raise InputError(f"{name}: no such file or folder")


def _absolute(name: str) -> str:
    if name == STDIN or is_address(name):
        return name
    if name.startswith(LIST):
        return LIST + os.path.abspath(name.removeprefix(LIST))
    return os.path.abspath(name)


def no_stdin() -> io.BufferedIOBase:
    """Opener of standard input where it cannot be read again."""
    raise InputError("- is standard input, which is read once; valid: @FILE, a list of paths")


def _listed(file: str) -> Iterator[str]:
    """Paths in the lines of a file."""
    try:
        with open(file, "rb") as stream:
            lines = stream.read().splitlines()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    return _some((os.fsdecode(line) for line in lines if line), f"{file} holds no paths")


def _some(paths: Iterator[str], message: str) -> Iterator[str]:
    """Pass the paths on; raise if there are none."""
    first = next(paths, None)
    if first is None:
        raise InputError(message)
    yield first
    yield from paths


def _piped(stream: io.BufferedIOBase) -> Iterator[ImageSource]:
    """Read one image, or paths line by line as they arrive."""
    start = stream.readline()
    if _is_image(start):
        yield io.BytesIO(start + stream.read())
        return
    lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in chain([start], stream))
    message = "standard input is empty; valid: an image, or one path a line"
    yield from _some((path for path in lines if path), message)


def _is_image(start: bytes) -> bool:
    """True if a stream with this first line holds an image; no path has a zero byte."""
    line = start.rstrip(b"\r\n")
    return b"\0" in line or (line.startswith(MAGIC) and not os.path.lexists(line))


log = logging.getLogger(__name__)

Watch = Callable[[int, int | None], None]
"""Progress callback: the number of images done, and their total once it is known."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Result of a prediction job."""

    images: int
    """Images of the whole job, including those of earlier, interrupted runs."""
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
    """Classify files, folders, patterns and standard input (`-`); call `each` on every prediction.

    `threshold` is as in `Classifier.predict`; `merge_tokens`, `engine` and `changes` are as in
    `open_classifier`. With `output`, images that the file already holds are not computed again.
    An unreadable image becomes a record with an `error`; if it is the only image, it raises
    InputError.
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
        engine = engine if begun is None else begun.engine  # no other engine can continue it
    exported = None
    if Path(model).suffix in SUFFIXES and not changes and not merge_tokens:
        exported = cached_export(model, engine=engine, images=inputs.count, export=_export)
    classifier = _open(
        model,
        exported,
        engine=engine,
        labels=labels,
        merge_tokens=merge_tokens,
        quickly=inputs.single,
        **changes,
    )
    job = _Job(
        model=os.fspath(model),
        classifier=classifier,
        inputs=inputs,
        top=top,
        threshold=threshold,
        sheet=contact_sheet,
        each=each,
        watch=watch,
    )
    with reading(max_pixels):
        found = job.begin()
        if output is None:
            return job.run(found, batch_size)
        manifest = job.describe(batch_size)
        with open_predictions(output, manifest, batch_size=batch_size, overwrite=overwrite) as file:
            return job.run(found, file.job.batch_size, file)


def predict_with(
    classifier: Classifier,
    images: Sequence[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str],
    top: int,
    threshold: float | None,
    batch_size: int | None,
    each: Callable[[Prediction], None],
    watch: Watch | None,
    stdin: Callable[[], BufferedIOBase] = lambda: cast(BufferedIOBase, sys.stdin.buffer),
) -> Predicted:
    """Classify images as `predict` does, with a classifier that is open; `model` is its name."""
    inputs = ImageInputs(names=[os.fspath(name) for name in images], stdin=stdin)
    job = _Job(
        model=os.fspath(model),
        classifier=classifier,
        inputs=inputs,
        top=top,
        threshold=threshold,
        sheet=None,
        each=each,
        watch=watch,
    )
    with reading(None):
        return job.run(job.begin(), 1 if inputs.single and batch_size is None else batch_size)


def _export(weights: Path, output: Path) -> None:
    from vitlab.jobs.export import export

    export(weights, output=output)


def _open(
    model: str | os.PathLike[str], exported: Path | None, *, engine: str, **options: Any
) -> Classifier:
    """Open the exported file, or the model itself if engine `auto` cannot read that file."""
    if exported is not None:
        try:
            return open_classifier(exported, engine=engine, **options)
        except VitlabError as error:
            if engine != "auto":
                raise
            log.warning("%s; %s itself is used", error, os.fspath(model))
    return open_classifier(model, engine=engine, **options)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A classifier, its images, the options, and callbacks for predictions and progress."""

    model: str
    classifier: Classifier
    inputs: ImageInputs
    top: int
    threshold: float | None
    sheet: Path | None
    each: Callable[[Prediction], None]
    watch: Watch | None

    def begin(self) -> Iterator[ImageSource | Decoded]:
        """Find the images; raise if there are none, or if a lone image cannot be read."""
        images = self.inputs.find()
        first = list(islice(images, 2))
        piped = isinstance(first[0], BytesIO)
        if piped and self.sheet is not None:
            raise InputError(f"{self.sheet} shows files; found an image through standard input")
        if len(first) == 1 and (self.inputs.single or piped):
            try:
                pixels = read_image(first[0], self.classifier.preprocessing)
            except InputError as error:
                name = "standard input" if piped else path_of(first[0])
                note = foreign_note([str(name)])
                ending = f"; {note}" if note else ""
                raise InputError(f"{name}: {error}{ending}") from error
            return iter([Decoded(source=first[0], pixels=pixels)])
        return chain(first, images)

    def describe(self, batch_size: int | None) -> PredictionManifest:
        """Build the manifest: settings that must be the same when the job is continued."""
        predictor = self.predictor(batch_size)
        return PredictionManifest(
            model=self.model,
            fingerprint=self.classifier.fingerprint(),
            images=tuple(self.inputs.absolute),
            written=tuple(self.inputs.names),
            top=self.top,
            task=predictor.task,
            threshold=predictor.threshold
            if objective_of(predictor.task).prediction == "likely"
            else None,
            batch_size=predictor.engine.batch_size,
            engine=self.classifier.engine,
            merge_tokens=self.classifier.merge_tokens,
        )

    def predictor(self, batch_size: int | None) -> Predictor:
        """Open the predictor of this job."""
        return self.classifier.predictor(batch_size=batch_size, threshold=self.threshold)

    def run(
        self,
        images: Iterable[ImageSource | Decoded],
        batch_size: int | None,
        file: PredictionFile | None = None,
    ) -> Predicted:
        """Predict the remaining images; store, report and draw the predictions."""
        start, before = time.monotonic(), 0 if file is None else file.count
        done, failed = before, 0 if file is None else file.failed
        shown = _first(file.records()) if file is not None and self.sheet else []
        left = images if file is None else _left(images, file.done.copy())
        total = _Total(self.inputs) if self.watch else None
        predictor = self.predictor(batch_size)
        for batch in predictor.stream(left, top=self.top, continued=before > 0):
            if file is not None:
                file.append(batch)
            done += len(batch)
            failed += sum(prediction.error is not None for prediction in batch)
            shown += batch[: SHOWN - len(shown)] if self.sheet else []
            for prediction in batch:
                self.each(prediction)
            if self.watch and total:
                self.watch(done, total.found)
        if file is not None:
            file.finish()
        seconds = time.monotonic() - start  # drawing is not predicting
        if self.sheet is not None:
            write_sheet(self.sheet, shown, images=done, model=self.model)
        return Predicted(images=done, failed=failed, done_before=before, seconds=seconds)


class _Total:
    """Total number of images, counted in a thread while the first are predicted."""

    def __init__(self, inputs: ImageInputs) -> None:
        self.found: int | None = None
        self._inputs = inputs
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        with suppress(OSError, InputError):  # reading the images raises the same error
            self.found = self._inputs.count()


def _left(
    images: Iterable[ImageSource | Decoded], done: Counter[str | None]
) -> Iterator[ImageSource | Decoded]:
    """Images without a prediction; an image named twice needs two."""
    for image in images:
        path = as_text(path_of(image))
        if done[path]:
            done[path] -= 1
        else:
            yield image


def _first(records: Iterable[Prediction]) -> list[Prediction]:
    return list(islice(records, SHOWN))
