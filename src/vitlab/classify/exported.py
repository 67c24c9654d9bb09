"""Exported models: a file, its metadata, and the runtime that computes it; imports no torch."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitlab.classify.engines.runtimes import Aoti, OnnxRuntime, OpenedOnce, OpenVino, Runtime
from vitlab.classify.engines.session import SessionEngine, Source
from vitlab.errors import WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import file_digest
from vitlab.weights.bundle import (
    CHECKED,
    ONNX,
    WEIGHTS,
    check_bundle_file,
    is_bundle,
    read_bundle_config,
)
from vitlab.weights.exported import ExportMetadata, read_export_metadata, read_metadata
from vitlab.weights.source import WeightSource, stored_preprocessing

RUNTIMES: dict[str, Callable[[Path], Runtime]] = {
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "aoti": Aoti,
}
"""Runtimes of exported files, by the name of the engine."""
CHECKED_BESIDE = 64 << 20
"""Bytes up to which the weights beside an ONNX file are hashed, too; larger ones by size."""


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A file, the engine that computes it, and its metadata."""

    file: Path
    engine: str
    metadata: ExportMetadata
    content: Any
    """Content of `config.json`: of the bundle, or of the metadata."""
    path: Path
    """Bundle or file that the content is from."""

    def source(self) -> WeightSource:
        """Preprocessing, labels and task of the model."""
        return WeightSource(
            format="vitlab",
            path=self.path,
            preprocessing=stored_preprocessing(self.content, str(self.path)),
            labels=tuple(self.content["labels"] or ()),
            task=self.content["task"] or "single-label",
            zero_head=self.metadata.facts.zero_head,
        )

    def session(self, source: WeightSource, *, batch_size: int | None = None) -> SessionEngine:
        """Engine ready to compute; the file is loaded once, however many there are."""
        known = Source(
            runtime=self._runtime,
            name=self.file.name,
            facts=self.metadata.facts,
            preprocessing=source.require_preprocessing(),
            task=source.task,
            classes=len(source.labels or ()),
        )
        return SessionEngine(known, batch_size=batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling, without the runtime: a copy opens the file itself."""
        return {name: value for name, value in vars(self).items() if name != "_runtime"}

    @cached_property
    def _runtime(self) -> OpenedOnce:
        return OpenedOnce(RUNTIMES[self.engine](self.file))

    def fingerprint(self, preprocessing: Preprocessing, labels: tuple[str, ...]) -> str:
        """Digest of the network, or of a quantised file, with its preprocessing and labels."""
        facts = self.metadata.facts
        network = None if facts.quantize else facts.network  # equal for every export
        content = [
            [network, facts.merge_tokens] if network else file_digest(self.file, "sha256"),
            preprocessing.to_json(),
            labels,
        ]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def open_exported(file: Path, *, engine: str) -> ExportedModel:
    """Model of an exported file, whose metadata is complete."""
    if file.name == ONNX and is_bundle(file.parent):
        check_bundle_file(file.parent, ONNX, read_bundle_config(file.parent))
    metadata = read_export_metadata(RUNTIMES[engine](file).metadata(), str(file))
    return ExportedModel(
        file=file, engine=engine, metadata=metadata, content=metadata.config, path=file
    )


def open_beside(folder: Path, *, engine: str, merge_tokens: int = 0) -> ExportedModel:
    """Model of a bundle's ONNX file, with the content of the bundle's `config.json`.

    Raises if it is damaged, of other weights, or merges another number of tokens.
    """
    content = read_bundle_config(folder)
    metadata = check_same_weights(folder)
    check_merging(folder / ONNX, metadata.facts.merge_tokens, merge_tokens, str(folder))
    return ExportedModel(
        file=folder / ONNX, engine=engine, metadata=metadata, content=content, path=folder
    )


def check_same_weights(folder: Path) -> ExportMetadata:
    """Metadata of a bundle's ONNX file; raises if it is damaged or of other weights."""
    content = read_bundle_config(folder)
    check_bundle_file(folder, ONNX, content)
    metadata = read_export_metadata(read_metadata(folder / ONNX), str(folder / ONNX))
    large = (folder / WEIGHTS).stat().st_size > CHECKED_BESIDE
    digest = check_bundle_file(folder, WEIGHTS, content, by_size=large)
    same = all(metadata.config[key] == content[key] for key in CHECKED)
    if same and metadata.facts.weights == (digest or file_digest(folder / WEIGHTS, "sha256")):
        return metadata
    raise StaleExport(
        f"{folder / ONNX} was not made of the {WEIGHTS} and config.json beside it; "
        f"`vitlab export {folder} --format onnx --output {folder / ONNX} --force` makes it anew"
    )


def check_merging(file: Path, merged: int, wanted: int, model: str = "MODEL") -> None:
    """Raise for a file that merges another number of tokens than is wanted."""
    if merged == wanted:
        return
    options = f" --merge-tokens {wanted}" if wanted else ""
    options += " --format aoti" if file.suffix == ".pt2" else ""
    raise StaleExport(
        f"{file} was exported with merge_tokens {merged}, not {wanted}; "
        f"`vitlab export {model}{options} --output FILE{file.suffix}` writes such a file"
    )


class StaleExport(WeightsError):
    """An exported model of other weights, or with other merging, than is wanted."""
