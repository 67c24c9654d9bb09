"""An exported model that answers for pictures: its file, and what its metadata or bundle says."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, cast

from vitlab.classify.engines.runtimes import Aoti, OnnxRuntime, OpenedOnce, OpenVino, Runtime
from vitlab.classify.engines.session import SessionEngine, Source
from vitlab.classify.predictor import Prediction, Predictor, build_predictor, predict_pictures
from vitlab.errors import InputError, WeightsError
from vitlab.images.pixels import Given
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.download import file_digest
from vitlab.task import Task
from vitlab.weights.bundle_files import (
    CHECKED,
    ONNX,
    WEIGHTS,
    check_bundle_file,
    is_bundle,
    read_bundle_config,
)
from vitlab.weights.exported import Deployed, read_deployed, read_metadata
from vitlab.weights.labels import Labels, read_labels
from vitlab.weights.source import WeightSource, stored_preprocessing

RUNTIMES: dict[str, Callable[[Path], Runtime]] = {
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "aoti": Aoti,
}
"""What can run an exported file, by the name of the engine."""
CHECKED_BESIDE = 64 << 20
"""Bytes up to which the weights beside an ONNX file are hashed, too; larger ones by size."""


@dataclass(frozen=True, kw_only=True)
class DeployedModel:
    """A file, the engine that runs it, and what it says."""

    file: Path
    engine: str
    deployed: Deployed
    labels: tuple[str, ...]
    source: WeightSource

    @property
    def merge_tokens(self) -> int:
        """Tokens that are merged in each block."""
        return self.deployed.facts.merge_tokens

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared; an error where nothing says it."""
        return self.source.require_preprocessing()

    def predict(
        self,
        images: Given | Iterable[Given],
        *,
        top: int = 5,
        batch_size: int | None = None,
        threshold: float | None = None,
    ) -> list[Prediction]:
        """As `Classifier.predict`; the file is loaded once, however often this is called."""
        return predict_pictures(
            self.predictor, images, top=top, batch_size=batch_size, threshold=threshold
        )

    def features(self, *images: Any, **options: Any) -> NoReturn:
        """Refused: a file answers and shows nothing of its inside."""
        raise self._closed("features")

    def explain(self, *images: Any, **options: Any) -> NoReturn:
        """Refused, as `features` are."""
        raise self._closed("explain")

    def explain_many(self, *images: Any, **options: Any) -> NoReturn:
        """Refused, as `features` are."""
        raise self._closed("explain_many")

    def _closed(self, asked: str) -> InputError:
        return InputError(
            f"{asked} needs the inside of a model, and the engine {self.engine} only predicts; "
            f'valid: the weights with engine="torch"'
        )

    def predictor(
        self, *, batch_size: int | None = None, threshold: float | None = None
    ) -> Predictor:
        """What streams pictures through the model; None: batches that suit model and machine."""
        return build_predictor(
            self.source,
            self.labels,
            lambda: self.session(batch_size=batch_size),
            batch_size=batch_size,
            threshold=threshold,
        )

    def session(
        self, *, batch_size: int | None = None, threads: int | None = None
    ) -> SessionEngine:
        """The engine, ready to compute."""
        source = Source(
            runtime=self._runtime,
            name=self.file.name,
            facts=self.deployed.facts,
            preprocessing=self.preprocessing,
            task=cast(Task, self.source.task),
            classes=len(self.labels),
        )
        return SessionEngine(source, batch_size=batch_size, threads=threads)

    @cached_property
    def _runtime(self) -> OpenedOnce:
        return OpenedOnce(RUNTIMES[self.engine](self.file))

    def fingerprint(self) -> str:
        """The same for models that give the same answers in the same words."""
        told = self.deployed.facts
        same = None if told.quantize else told.network  # however often it is exported
        facts = [
            [same, told.merge_tokens] if same else file_digest(self.file, "sha256"),
            self.preprocessing.to_json(),
            self.labels,
        ]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def open_deployed(file: Path, *, engine: str, labels: Labels | None = None) -> DeployedModel:
    """The model of an exported file, which says everything itself."""
    if file.name == ONNX and is_bundle(file.parent):
        check_bundle_file(file.parent, ONNX, read_bundle_config(file.parent))
    runtime = RUNTIMES[engine](file)
    deployed = read_deployed(runtime.metadata(), str(file))
    return _model(file, engine, deployed, deployed.config, labels, file)


def open_beside(
    folder: Path, *, engine: str, labels: Labels | None = None, merge_tokens: int = 0
) -> DeployedModel:
    """The ONNX file of a bundle, with what the bundle says.

    A damaged one, one of other weights, or that merges another number of tokens, is refused.
    """
    content = read_bundle_config(folder)
    deployed = check_same_weights(folder)
    check_merging(folder / ONNX, deployed.facts.merge_tokens, merge_tokens, str(folder))
    return _model(folder / ONNX, engine, deployed, content, labels, folder)


def _model(
    file: Path,
    engine: str,
    deployed: Deployed,
    content: Any,
    labels: Labels | None,
    path: Path,
) -> DeployedModel:
    own = tuple(content["labels"] or ())
    source = WeightSource(
        format="vitlab",
        path=path,
        preprocessing=stored_preprocessing(content, str(path)),
        labels=own,
        task=content["task"] or "single-label",
        zero_head=deployed.facts.zero_head,
    )
    return DeployedModel(
        file=file,
        engine=engine,
        deployed=deployed,
        labels=own if labels is None else read_labels(labels, len(own)),
        source=source,
    )


def check_same_weights(folder: Path) -> Deployed:
    """The metadata of a bundle's ONNX file; an error if it is damaged or of other weights."""
    content = read_bundle_config(folder)
    check_bundle_file(folder, ONNX, content)
    deployed = read_deployed(read_metadata(folder / ONNX), str(folder / ONNX))
    large = (folder / WEIGHTS).stat().st_size > CHECKED_BESIDE
    digest = check_bundle_file(folder, WEIGHTS, content, by_size=large)
    same = all(deployed.config[key] == content[key] for key in CHECKED)
    if same and deployed.facts.weights == (digest or file_digest(folder / WEIGHTS, "sha256")):
        return deployed
    raise StaleExport(
        f"{folder / ONNX} was not made of the {WEIGHTS} and config.json beside it; "
        f"`vitlab export {folder} --format onnx --output {folder / ONNX} --force` makes it anew"
    )


def check_merging(file: Path, merged: int, wanted: int, model: str = "MODEL") -> None:
    """Refuse a file that merges another number of tokens than is wanted."""
    if merged == wanted:
        return
    options = f" --merge-tokens {wanted}" if wanted else ""
    options += " --format aoti" if file.suffix == ".pt2" else ""
    raise StaleExport(
        f"{file} was exported with merge_tokens {merged}, not {wanted}; "
        f"`vitlab export {model}{options} --output FILE{file.suffix}` writes such a file"
    )


class StaleExport(WeightsError):
    """An exported model of other weights, or otherwise merged, than is wanted."""
