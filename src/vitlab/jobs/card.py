"""Model card of a bundle, a run or a weight file."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab.classify.classifier import Classifier, load
from vitlab.config import parse_json
from vitlab.errors import ConfigError, WeightsError
from vitlab.io.files import file_digest
from vitlab.jobs.plan import read_plan, resume_command
from vitlab.models.cost import cost
from vitlab.models.variants import variant_name
from vitlab.report.card.content import Card, Kind, StoredFile
from vitlab.report.card.content import Measured as Measured
from vitlab.report.card.content import Section as Section
from vitlab.report.card.content import sections as sections
from vitlab.report.card.markdown import markdown as markdown
from vitlab.report.card.markdown import write_markdown as write_markdown
from vitlab.report.numbers import counted
from vitlab.weights.bundle import (
    bundle_files,
    checked_content,
    config_of,
    find_bundle,
    is_bundle,
    read_bundle_config,
)
from vitlab.weights.container import CONFIG_KEY, open_weights
from vitlab.weights.exported import Facts, read_export_metadata, read_metadata, read_package
from vitlab.weights.fetch import find
from vitlab.weights.labels import known_labels
from vitlab.weights.reading import read_json, reading
from vitlab.weights.resolve import HUB, Checkpoint, bundled_folder, locate, named
from vitlab.weights.source import stored_preprocessing

EXPORTED = {".onnx": read_metadata, ".pt2": read_package}
"""Readers of the metadata of exported files, by ending."""
BESIDE = ("config.json", "preprocessor_config.json")
CARD = "README.md"
MOST = 1 << 53
"""The largest number of images: a float holds it exactly."""


def read_card(path: str | os.PathLike[str], **changes: Any) -> Card:
    """Read the card of a bundle, a run or a weight file; `changes` as in `load`."""
    if Path(path).suffix in EXPORTED and Path(path).is_file():
        return _exported_card(Path(path))
    if (published := named(path)) is not None and find(published) is None:
        return _published_card(published)
    if isinstance(path, str) and path.startswith(HUB):
        path = locate(path)  # once: provenance and metrics are in the folder
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


def _published_card(found: Checkpoint) -> Card:
    """Card of weights that have not been fetched, from the table of published ones."""
    model = replace(found.config, classes=found.classes)
    size = "" if found.size is None else f" ({found.size})"
    return Card(
        path=Path(found.name),
        kind="published",
        format=found.remote.name,
        name=found.name,
        model=model,
        cost=cost(model),
        files=(),
        labels=known_labels(found.dataset, model.classes),
        preprocessing=found.preprocessing,
        licence=found.licence,
        assumed=(
            f"values are those of the table: get the file{size} with "
            f"vitlab weights fetch {found.name}, from {found.url}",
        ),
    )


def _exported_card(path: Path) -> Card:
    """Card of an exported file, from its metadata: nothing of it is run."""
    found = read_export_metadata(EXPORTED[path.suffix](path), str(path))
    content = checked_content(dict(found.config), str(path))
    provenance, model = _mapping(content.get("provenance")), config_of(content, str(path))
    return Card(
        path=path,
        kind="exported",
        format=path.suffix[1:],
        name=variant_name(model) or _relative(provenance.get("model")),
        model=model,
        cost=cost(model),
        files=(_stored_file(path),),
        task=content.get("task"),
        labels=tuple(content["labels"]) if content.get("labels") else None,
        preprocessing=stored_preprocessing(content, str(path)),
        metrics=_metrics(content.get("metrics"), path),
        provenance=provenance,
        licence=provenance.get("licence"),
        zero_head=found.facts.zero_head,
        exported=tuple(_exported_notes(found.facts)),
    )


def _exported_notes(facts: Facts) -> Iterator[str]:
    yield (
        "any number of images a call"
        if facts.batch is None
        else f"{counted(facts.batch, 'image')} a call"
    )
    yield (
        "takes 8-bit pixels and normalises them itself"
        if facts.preprocess_inside
        else "takes normalised pixels"
    )
    if facts.quantize is not None:
        yield f"quantised to {facts.quantize}; metrics are those of the model before"
    if facts.merge_tokens:
        yield f"merges {facts.merge_tokens} tokens a block; metrics are those without merging"


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
    """Raise for a run without a bundle, which is written at its end."""
    begun = all((path / name).is_file() for name in ("metrics.jsonl", "config.json"))
    if begun and folder == path and not is_bundle(path):
        read_plan(path)
        raise ConfigError(f"{path}: the run has not ended; continue it: {resume_command(path)}")


def _relative(name: Any) -> str | None:
    return f"variant of {name}" if name else None


def licence_in(card: Path) -> str | None:
    """Licence in the front matter of a model card."""
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    front = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    found = front and re.search(r"^license:[ \t]*([^\s#].*?)[ \t]*$", front[1], re.MULTILINE)
    stated = found[1].strip("\"'") if found else None
    return None if stated in (None, "unknown") else stated


def _inside(path: Path) -> dict[str, Any]:
    """Metadata of a file written by vitlab; empty for other files."""
    file = open_weights(path)
    try:
        with reading(path):
            return _mapping(parse_json(file.metadata.get(CONFIG_KEY, "{}")))
    finally:
        file.close()


def _weight_files(given: Path, weights: Path) -> list[Path]:
    """The weight file; of a folder also its shards and the configs beside it."""
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
    """Numbers among the stored metrics; raises for an impossible accuracy or count."""
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
