"""`vitlab export`: a model as a file for other runtimes, kept only if both agree."""

import logging
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.engines.runtimes import run_onnx
from vitlab.errors import ConfigError, FileError, InputError, UnknownName
from vitlab.evaluation.classification import Outcome
from vitlab.exporting.onnx import Half, data_beside, exportable, require_onnx, write_onnx
from vitlab.exporting.program import trace
from vitlab.exporting.quantize import Pixels, write_int8
from vitlab.exporting.torch_export import (
    require_compiler,
    run_package,
    run_program,
    write_package,
    write_program,
)
from vitlab.exporting.verify import BATCHES, Comparison, Run, compare
from vitlab.images.find import walk_images
from vitlab.images.pixels import read_image
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import check_parent, staged_folder, sync
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.export_model import Exportable, Model, open_exportable
from vitlab.machine.device import onnx_wanted
from vitlab.models.config import Size
from vitlab.weights.bundle import ONNX, WEIGHTS, is_bundle, record_file
from vitlab.weights.exported import ExportMetadata, Quantized, trust
from vitlab.weights.labels import Labels
from vitlab.weights.preparation import Stated

Format = Literal["onnx", "torch-export", "aoti"]
WRITERS = {"torch-export": write_program, "aoti": write_package}
RUNNERS = {"torch-export": run_program, "aoti": run_package, "onnx": run_onnx}
SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2", "aoti": ".pt2"}
CALIBRATED, CALIBRATED_AT_ONCE = 128, 8
"""Most images for calibration, and how many of them are computed at once."""
TOLERANCES: dict[Quantized | None, float] = {None: 1e-4, "fp16": 1e-2, "int8": 0.5}
"""Largest accepted difference of a logit, relative to the largest logit (or to one)."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The written file, and its agreement with the model."""

    output: Path
    format: Format
    files: tuple[Path, ...]
    comparison: Comparison
    described: ExportMetadata
    fresh: bool
    """True if the weights are random: the model was given by an architecture's name."""

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.stat().st_size for file in self.files)


def export(
    model: Model,
    *,
    format: str = "onnx",
    output: str | os.PathLike[str],
    dynamic_batch: bool = True,
    image_size: Size | None = None,
    preprocess_inside: bool = False,
    quantize: str | None = None,
    calibrate: str | os.PathLike[str] | None = None,
    compact: bool = False,
    merge_tokens: int = 0,
    preprocessing: Stated | None = None,
    labels: Labels | None = None,
    tolerance: float | None = None,
    force: bool = False,
    **changes: Any,
) -> Exported:
    """Write the model to `output`, completely or not at all.

    The file is loaded again and compared with the model on photographs and noise; a difference
    above the tolerance is an error, and no file is left. `calibrate` is a folder of
    images, from which `quantize="int8"` learns the range of activations. `compact` stores weights
    of an ONNX file that 16 bits hold exactly in 16 bits. `merge_tokens` as in `vitlab.load`: the
    file merges them, and is compared with the merging model. `preprocessing` and `labels`
    replace those of the weights, `labels` as in `vitlab.load`; a model whose preprocessing is not
    known needs it. `changes` are those of the config; a module or a classifier has been built, and
    takes none.
    """
    path = Path(output)
    check_output(path, format, force)
    kind = _quantized(quantize, format, calibrated=calibrate is not None)
    _check_needs(format)
    if compact and format != "onnx":
        raise ConfigError(f"compact and format {format}; valid: ONNX files alone are made so")
    found = open_exportable(
        model,
        image_size=image_size,
        merge_tokens=merge_tokens,
        preprocessing=preprocessing,
        labels=labels,
        **changes,
    )
    allowed = TOLERANCES[kind] if tolerance is None else tolerance
    batch = None if dynamic_batch else 1
    described = found.described(inside=preprocess_inside, quantize=kind, batch=batch)
    with _staged(path) as folder:
        staged = folder / path.name
        images = None if calibrate is None else calibration(found, described, calibrate)
        _write(found, described, format, staged, images, compact)
        comparison = _compare(found, described, RUNNERS[format](staged), allowed)
        comparison.check()
        files = _publish(folder, path)
        if format == "aoti":
            trust(path)
    if path.name == ONNX and is_bundle(path.parent):
        record_file(path.parent, ONNX)
    return Exported(
        output=path,
        format=format,  # type: ignore[arg-type]  # checked above
        files=files,
        comparison=comparison,
        described=described,
        fresh=found.fresh,
    )


def _write(
    found: Exportable,
    described: ExportMetadata,
    format: str,
    path: Path,
    images: Iterable[Pixels] | None,
    compact: bool,
) -> None:
    facts, metadata = described.facts, described.metadata()
    inside = found.preprocessing if facts.preprocess_inside else None
    program = trace(
        found.model, inside=inside, dynamic_batch=facts.batch is None, plain=format == "onnx"
    )
    if format != "onnx":
        WRITERS[format](program, path, metadata)
        return
    # Weights of 16 bits are no constants, which int8 is made of.
    half: Half | None = "exact" if compact and facts.quantize != "int8" else None
    write_onnx(program, path, metadata, half="all" if facts.quantize == "fp16" else half)
    if facts.quantize == "int8":
        write_int8(path, metadata, images)


def calibration(
    found: Exportable, described: ExportMetadata, folder: str | os.PathLike[str]
) -> list[Pixels]:
    """Batches of a sample of a folder's images, as the exported model takes them."""
    paths = sorted(walk_images(os.fspath(folder)))
    if not paths:
        raise InputError(f"{os.fspath(folder)} holds no image files to calibrate with")
    chosen = paths[:: -(-len(paths) // CALIBRATED)]
    pixels = np.stack([_read(path, found.preprocessing) for path in chosen])
    batch = described.facts.batch or CALIBRATED_AT_ONCE
    parts = [pixels[first : first + batch] for first in range(0, len(pixels), batch)]
    if described.facts.preprocess_inside:
        return list(parts)
    return [found.preprocessing.normalise(part) for part in parts]


def _read(path: str, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Pixels of an image for calibration; an error names the file."""
    try:
        return read_image(path, preprocessing)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _quantized(quantize: str | None, format: str, *, calibrated: bool) -> Quantized | None:
    if quantize is not None and quantize not in get_args(Quantized):
        raise UnknownName("quantisation", quantize, get_args(Quantized))
    if quantize is not None and format != "onnx":
        raise ConfigError(f"--quantize {quantize} is for --format onnx, not {format}")
    if calibrated and quantize != "int8":
        raise ConfigError("--calibrate is for --quantize int8")
    return cast(Quantized | None, quantize)


def _compare(
    found: Exportable, described: ExportMetadata, run: Run, tolerance: float
) -> Comparison:
    batch = described.facts.batch
    return compare(
        found.model,
        run,
        preprocessing=found.preprocessing,
        inside=described.facts.preprocess_inside,
        batches=BATCHES if batch is None else (batch,),
        tolerance=tolerance,
    )


def check_output(path: Path, format: str, force: bool) -> None:
    """Raise if the file cannot be written there."""
    if format not in get_args(Format):
        raise UnknownName("format", format, get_args(Format))
    if path.suffix != SUFFIXES[format]:
        raise FileError(f"{path}: {format} is written as a file that ends in {SUFFIXES[format]}")
    if path.exists() and not force:
        raise FileError(f"{path} exists; --force overwrites it")
    if path.is_dir():
        raise FileError(f"{path} is a folder; valid: a file that can be written")
    check_parent(path)


def _check_needs(format: str) -> None:
    """Raise for missing packages, before the model is read."""
    if format == "onnx":
        require_onnx()
    if format == "aoti":
        require_compiler()


@contextmanager
def _staged(path: Path) -> Iterator[Path]:
    """Temporary folder beside the output, removed afterwards."""
    with staged_folder(path) as folder:
        try:
            yield folder
        except OSError as error:
            raise FileError(f"{path}: cannot be written ({error.strerror})") from error


def _publish(folder: Path, path: Path) -> tuple[Path, ...]:
    """Move the staged files to their place; the file that names the others comes last.

    Weights beside a replaced file are removed.
    """
    staged = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    for file in staged:
        sync(file)
        os.replace(file, path.parent / file.name)
    published = tuple(path.parent / file.name for file in staged)
    if data_beside(path) not in published:
        data_beside(path).unlink(missing_ok=True)
    return published


# The ONNX file of a bundle, beside the weights that it is made of.

log = logging.getLogger(__name__)


def write_onnx_beside(folder: Path) -> Path | None:
    """Write the ONNX file unless it is switched off; a failure is a warning."""
    if not (onnx_wanted() and exportable(folder / WEIGHTS)):
        return None
    return try_export(folder, compact=True)


def try_export(folder: Path, *, compact: bool) -> Path | None:
    """Path of the ONNX file; None, with a warning, if the model cannot be exported."""
    try:
        return export(folder, output=folder / ONNX, compact=compact, force=True).output
    except Exception as error:  # a registered part may fail to export, with any error
        reason = " ".join(str(error).split())[:200]
        log.warning("no %s beside the weights: %s", ONNX, reason)
        return None


# Cost of an export in accuracy: the same images, before and after.

Z = 1.959964
"""Standard deviations on each side of a mean that contain 95 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Two models on the same images."""

    data: str
    images: int
    before: float
    after: float
    agreement: float
    """Share of the images with the same class from both."""
    interval: tuple[float, float]
    """95 % confidence interval of after minus before, paired by image."""


def before(
    model: str | os.PathLike[str],
    data: str,
    *,
    split: str = "test",
    download: bool = False,
    **changes: Any,
) -> Outcome:
    """Outputs of the model in torch, for a comparison with its exported file.

    `changes` are those of the export.
    """
    found = evaluate(model, data, split=split, engine="torch", download=download, **changes)
    if found.source.task != "single-label":
        raise InputError(f"--data compares single-label models; {data} is {found.source.task} data")
    return found.outcome


def accuracy_of(first: Outcome, exported: Path, data: str, *, split: str = "test") -> Accuracy:
    """Compare the outputs of a model with those of its exported file."""
    return compared(first, evaluate(exported, data, split=split).outcome, data)


def compared(first: Outcome, second: Outcome, data: str) -> Accuracy:
    """Accuracies on the same images, with the interval of paired proportions.

    The method of Agresti and Min (2005): half an image is added to each cell.
    """
    one, two = (outcome.logits.argmax(dim=1) for outcome in (first, second))
    right, still = one == first.labels, two == first.labels
    lost, won = int((right & ~still).sum()), int((~right & still).sum())
    images = len(first)
    more = images + 2
    difference = (won - lost) / more
    half = Z * math.sqrt(won + lost + 1 - (won - lost) ** 2 / more) / more
    return Accuracy(
        data=data,
        images=images,
        before=float(right.double().mean()),
        after=float(still.double().mean()),
        agreement=float((one == two).double().mean()),
        interval=(max(difference - half, -1.0), min(difference + half, 1.0)),
    )
