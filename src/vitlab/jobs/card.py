"""From a bundle, a run or a weight file to its card."""

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vitlab.classify.classifier import Classifier, load
from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError
from vitlab.io.download import file_digest
from vitlab.jobs.run_folder import read_plan, resume_command
from vitlab.models.cost import cost
from vitlab.models.variants import ModelConfig, variant, variants
from vitlab.report.card.content import Card, Kind, StoredFile
from vitlab.report.card.content import Measured as Measured
from vitlab.report.card.content import Section as Section
from vitlab.report.card.content import sections as sections
from vitlab.report.card.markdown import markdown as markdown
from vitlab.report.card.markdown import write_markdown as write_markdown
from vitlab.weights.bundle_files import bundle_files, find_bundle, is_bundle, read_bundle_config
from vitlab.weights.bundled import bundled_folder
from vitlab.weights.container import CONFIG_KEY, open_weights
from vitlab.weights.reading import read_json, reading

FREE = {
    *("classes", "image_size", "channels", "dropout", "attention_dropout", "drop_path"),
    *("norm_eps", "gelu", "position_resize", "dynamic_size"),
}
"""Fields in which a model may differ from the variant whose name it has."""
BESIDE = ("config.json", "preprocessor_config.json")
CARD = "README.md"
MOST = 1 << 53
"""The largest number of images: a float holds it exactly."""


def read_card(path: str | os.PathLike[str], **changes: Any) -> Card:
    """What a bundle, a run or a weight file says about itself; `changes` as `load` takes them."""
    given = bundled_folder(path) or Path(path)
    folder = find_bundle(given)
    _check_finished(given, folder)
    classifier = load(path, **changes)
    bundle = is_bundle(folder)
    stored = read_bundle_config(folder) if bundle else _inside(classifier.source.path)
    files = bundle_files(folder) if bundle else _weight_files(given, classifier.source.path)
    provenance = _mapping(stored.get("provenance"))
    kind: Kind = "weights" if not bundle else "bundle" if folder == given else "run"
    return Card(
        path=given,
        kind=kind,
        task=stored.get("task"),
        metrics=_metrics(stored.get("metrics"), given),
        provenance=provenance,
        licence=provenance.get("licence") or classifier.source.licence or licence_in(folder / CARD),
        files=tuple(_stored_file(file) for file in files),
        name=classifier.source.name
        or variant_name(classifier.model.config)
        or _relative(provenance.get("model")),
        **_of_model(classifier),
    )


def _of_model(classifier: Classifier) -> dict[str, Any]:
    model, source = classifier.model, classifier.source
    return {
        "format": source.format,
        "model": model.config,
        "cost": cost(model),
        "labels": source.labels,
        "preprocessing": source.preprocessing,
        "zero_head": source.zero_head,
        "assumed": source.assumed,
        "ignored": source.ignored,
    }


def _check_finished(path: Path, folder: Path) -> None:
    """A run has a bundle only at its end."""
    begun = all((path / name).is_file() for name in ("metrics.jsonl", "config.json"))
    if begun and folder == path and not is_bundle(path):
        read_plan(path)
        raise ConfigError(f"{path}: the run has not ended; continue it: {resume_command(path)}")


def variant_name(config: ModelConfig) -> str | None:
    """The name of the model whose shape this is, whatever its input and its classes."""
    return next((name for name in variants() if _same_shape(config, variant(name))), None)


def _relative(name: Any) -> str | None:
    return f"variant of {name}" if name else None


def _same_shape(config: ModelConfig, other: ModelConfig) -> bool:
    return type(config) is type(other) and all(
        getattr(config, field.name) == getattr(other, field.name)
        for field in fields(config)
        if field.name not in FREE
    )


def licence_in(card: Path) -> str | None:
    """The licence that the front matter of a model card states."""
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    front = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    found = front and re.search(r"^license:[ \t]*([^\s#].*?)[ \t]*$", front[1], re.MULTILINE)
    stated = found[1].strip("\"'") if found else None
    return None if stated in (None, "unknown") else stated


def _inside(path: Path) -> dict[str, Any]:
    """What the metadata of a file of ours hold besides the model: those of a bundle hold all."""
    file = open_weights(path)
    try:
        with reading(path):
            return _mapping(parse_json(file.metadata.get(CONFIG_KEY, "{}")))
    finally:
        file.close()


def _weight_files(given: Path, weights: Path) -> list[Path]:
    """The file that was read; of a folder also its shards and the configs beside it."""
    if not given.is_dir():
        return [weights]
    folder, shards = weights.parent, set()
    if weights.name.endswith(".index.json"):
        shards = {str(name) for name in read_json(weights)["weight_map"].values()}
    beside = [folder / name for name in BESIDE if (folder / name).is_file()]
    return [weights, *(folder / name for name in sorted(shards)), *beside]


def _stored_file(path: Path) -> StoredFile:
    return StoredFile(name=path.name, bytes=path.stat().st_size, sha256=file_digest(path, "sha256"))


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _metrics(value: Any, path: Path) -> dict[str, float]:
    """The numbers among stored metrics; WeightsError for an impossible accuracy or count."""
    found = {
        key: number
        for key, number in _mapping(value).items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }
    for key, number in found.items():
        if key.endswith("_accuracy") and not 0 <= number <= 1:
            raise WeightsError(f"{path}: {key} is {number}; valid: 0 to 1")
        if key.endswith("_images") and not (0 <= number <= MOST and number == int(number)):
            raise WeightsError(f"{path}: {key} is {number}; valid: a number of images")
    return found


# The model card: what a bundle, a run or a weight file is, for people and for the hub.

__all__ = [
    "Card",
    "Measured",
    "Section",
    "StoredFile",
    "markdown",
    "read_card",
    "sections",
    "write_markdown",
]
