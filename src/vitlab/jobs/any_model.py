"""Any model: a run, a bundle, weights, or a name of the family with random weights."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitlab.classify.classifier import Classifier, load
from vitlab.config import override
from vitlab.errors import ConfigError, UnknownName
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import pair
from vitlab.models.variants import create_model, known_name, variant, variants
from vitlab.weights.preparation import Stated, stating
from vitlab.weights.resolve import bundled_name, bundled_names, named, title_of
from vitlab.weights.source import WeightSource


@dataclass(frozen=True, kw_only=True)
class AnyModel:
    """A classifier and its title."""

    classifier: Classifier
    name: str
    fresh: bool = False
    """True if the weights are random, not trained."""


def open_any(model: str | os.PathLike[str] | Classifier, **changes: Any) -> AnyModel:
    """Open a name or path, with changes of its config; an untrained model is drawn by `seed`.

    A classifier is returned unchanged, and changes of it are refused.
    """
    if isinstance(model, Classifier):
        for name in changes:
            raise ConfigError(
                f"keyword {name!r}: a model that is built already takes no changes of its config; "
                f"valid: a name, a file or a run, which take them"
            )
        return AnyModel(classifier=model, name=model.source.path.name)
    word = os.fspath(model)
    if is_name(model):
        return AnyModel(classifier=_fresh(word, **changes), name=word, fresh=True)
    return AnyModel(classifier=load(model, **changes), name=title_of(model))


def stated(preprocessing: Stated | None) -> dict[str, Any]:
    """Changes of `open_any` that state a preprocessing, if one is given."""
    return {} if preprocessing is None else {"preprocessing": preprocessing}


def is_name(model: object) -> bool:
    """True for an architecture without weights; an unknown word is an error."""
    return isinstance(model, str) and _is_name(model)


def _is_name(word: str) -> bool:
    """A bare word is a name first, a path when it exists and no such name does."""
    known = bundled_name(word) is not None or named(word) is not None
    if known or "/" in word or os.sep in word:
        return False
    try:
        variant(word)
    except UnknownName:
        if Path(word).exists():
            return False
        choices = (*bundled_names(), *variants())
        raise UnknownName("model or file", word, choices) from None
    return True


def _fresh(
    name: str, *, seed: int = 0, preprocessing: Stated | None = None, **changes: Any
) -> Classifier:
    config = override(variant(known_name(name)), changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_model(config)
    half = (0.5,) * config.channels  # random weights have no preprocessing of their own
    source = WeightSource(
        format="vitlab",
        path=Path(name),
        preprocessing=Preprocessing(size=pair(config.image_size), mean=half, std=half),
        assumed=("random weights",),
    )
    return Classifier(model, stating(source, preprocessing, config))
