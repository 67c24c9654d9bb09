"""The model to export: on the CPU, at the requested size, with its metadata."""

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlab.classify.classifier import Classifier
from vitlab.config import to_dict
from vitlab.errors import ConfigError, WeightsError
from vitlab.exporting.program import at_size
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import file_digest
from vitlab.jobs.any_model import is_name, open_any
from vitlab.machine.device import check_weights
from vitlab.models.config import Size, pair
from vitlab.models.cost import image_shape, largest_output, peak_bytes, weight_bytes
from vitlab.models.merging import merged_tokens, merging, unmerged
from vitlab.weights.bundle import (
    FILES,
    WEIGHTS,
    bundle_content,
    find_bundle,
    is_bundle,
    read_bundle_config,
)
from vitlab.weights.exported import ExportMetadata, Facts, Quantized
from vitlab.weights.labels import Labels, read_labels
from vitlab.weights.preparation import Stated, stating
from vitlab.weights.resolve import locate, named
from vitlab.weights.source import WeightSource, network_digest

Model = str | os.PathLike[str] | Classifier | nn.Module
COPIES = 4
"""Copies of the weights that are in memory while a file is written and compared."""
STD = 0.02
"""Standard deviation of the numbers that replace zeros in untrained weights."""


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """A model with its metadata."""

    model: nn.Module
    content: dict[str, Any]
    """Content of `config.json` in its bundle."""
    preprocessing: Preprocessing
    digest: str | None
    """Digest of the bundle's weights."""
    fresh: bool
    zero_head: bool

    def described(
        self, *, inside: bool, quantize: Quantized | None, batch: int | None
    ) -> ExportMetadata:
        """Metadata of the exported file."""
        facts = Facts(
            weights=self.digest,
            preprocess_inside=inside,
            quantize=quantize,
            zero_head=self.zero_head,
            batch=batch,
            output_bytes=largest_output(self.model),
            peak_bytes=peak_bytes(self.model),
            weight_bytes=weight_bytes(self.model),
            merge_tokens=merged_tokens(self.model),
            network=network_digest(unmerged(self.model)[0]),
        )
        return ExportMetadata(config=self.content, facts=facts)


def open_exportable(
    model: Model,
    *,
    image_size: Size | None = None,
    merge_tokens: int = 0,
    preprocessing: Stated | None = None,
    labels: Labels | None = None,
    **changes: Any,
) -> Exportable:
    """Open a run, a bundle, weights, a model, or a name of the family with random weights.

    A classifier that merges tokens is exported as such; `merge_tokens` sets another number. The
    caller's model is not changed. Preprocessing and labels are those of the weights unless they are
    passed; unknown preprocessing is an error, except for a name, whose weights are random.
    """
    if image_size is not None and is_name(model):
        changes["image_size"] = image_size  # at once: valid together only
    folder = None
    if not isinstance(model, Classifier | nn.Module) and not changes:
        folder = _bundle_of(model)
    found = open_any(_classifier(model) if isinstance(model, nn.Module) else model, **changes)
    classifier = found.classifier
    if found.fresh:
        _fill_zeros(classifier.model)
    check_weights(f"exporting {found.name}", COPIES * weight_bytes(classifier.model))
    plain, merged = unmerged(_copied(classifier.model))
    network = merging(at_size(plain, image_size), merge_tokens or merged)
    config: Any = network.config
    source = classifier.source
    if not isinstance(preprocessing, Preprocessing):
        source, preprocessing = stating(source, preprocessing, config), None
    prepared = _prepared(preprocessing or source.require_preprocessing(), config)
    names = classifier.labels if labels is None else read_labels(labels, config.classes)
    return Exportable(
        model=network,
        content=_content(folder, classifier, config, prepared, names),
        preprocessing=prepared,
        digest=None if folder is None else file_digest(folder / WEIGHTS, "sha256"),
        fresh=found.fresh,
        zero_head=classifier.source.zero_head,
    )


def _classifier(model: nn.Module) -> Classifier:
    """Copy of a model with its weight source."""
    image_shape(model)  # or it is not a model of vitlab
    source = getattr(model, "source", None) or WeightSource(format="vitlab", path=Path("model"))
    return Classifier(_copied(model), source)


def _copied(model: nn.Module) -> nn.Module:
    """Copy on the CPU, in float32 and eval mode; tensors that need no conversion are shared.

    The others are copied one by one, which takes no memory of an accelerator.
    """
    known: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        kind = torch.float32 if tensor.is_floating_point() else tensor.dtype
        plain = tensor.detach().to("cpu", kind)
        trained = isinstance(tensor, nn.Parameter)
        known[id(tensor)] = nn.Parameter(plain, tensor.requires_grad) if trained else plain
    return copy.deepcopy(model, known).eval()


def _prepared(preprocessing: Preprocessing, config: Any) -> Preprocessing:
    """Preprocessing in the size of the model; one for other channels is refused."""
    if preprocessing.channels != config.channels:
        raise ConfigError(
            f"preprocessing of {preprocessing.channels} channels for a model of {config.channels}; "
            f"valid: mean and std of {config.channels} numbers each"
        )
    return preprocessing.resized(pair(config.image_size))


def _bundle_of(model: str | os.PathLike[str]) -> Path | None:
    """Folder of the bundle; None if this is not a bundle."""
    if named(model) is not None:
        return None
    try:
        folder = find_bundle(locate(model))
    except WeightsError:  # a name of the family
        return None
    return folder if folder.is_dir() and is_bundle(folder) else None


def _content(
    folder: Path | None,
    classifier: Classifier,
    config: Any,
    preprocessing: Preprocessing,
    labels: tuple[str, ...],
) -> dict[str, Any]:
    if folder is not None:
        changed = {
            "model": to_dict(config),
            "preprocessing": preprocessing.to_json(),
            "labels": list(labels),
        }
        stored = read_bundle_config(folder)
        del stored[FILES]
        return stored | changed
    source = classifier.source
    known = {"weights": source.name or source.path.name, "licence": source.licence}
    return bundle_content(
        config,
        preprocessing=preprocessing,
        labels=labels,
        metrics={},
        provenance={key: value for key, value in known.items() if value},
        task=source.task,
    )


def _fill_zeros(model: nn.Module) -> None:
    """Fill matrices of zeros, such as a new head, with random numbers: outputs would be zero."""
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.detach().any():
            nn.init.normal_(parameter, std=STD, generator=draw)
