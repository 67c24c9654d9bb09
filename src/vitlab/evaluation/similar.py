"""Most similar images by the cosine between their features, computed in chunks."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int
from numpy import ndarray

from vitlab.errors import DataError, InputError
from vitlab.evaluation.feature_file import FeatureInfo

CHUNK = 1 << 15
"""Images compared at once: 48 MiB of features 384 numbers wide."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearest:
    """Row indices, the most similar first, and their cosines."""

    rows: Int[ndarray, " K"]
    similarity: Float[ndarray, " K"]


def nearest(
    chunks: Iterable[Float32[ndarray, "_ D"]], query: Float32[ndarray, " D"], *, top: int
) -> Nearest:
    """The `top` rows most similar to the query; ties go to the first."""
    if top < 1:
        raise InputError(f"top {top}; valid: at least 1")
    query = _unit(query[None])[0]
    rows, scores, start = np.empty(0, np.int64), np.empty(0), 0
    for chunk in chunks:
        found = _unit(chunk) @ query
        rows = np.concatenate([rows, np.arange(start, start + len(chunk))])
        scores = np.concatenate([scores, found.astype(np.float64)])
        kept = _best(scores, top)
        rows, scores, start = rows[kept], scores[kept], start + len(chunk)
    return Nearest(rows=rows, similarity=scores)


def check_vectors(stored: FeatureInfo) -> None:
    """Raise for features that are not one vector per image."""
    if stored.kind == "patches":
        raise DataError("holds grids of patches, not one vector an image; valid: pooled, cls")


def check_text(stored: FeatureInfo) -> None:
    """Raise for features that cannot be compared with the embedding of a text."""
    if stored.kind != "embedding":
        raise DataError(
            f"holds {stored.kind} features, before the projection that images and texts share; "
            f"valid for a text: features of `vitlab features --kind embedding`"
        )


def check_same(stored: FeatureInfo, query: FeatureInfo) -> None:
    """Raise for features that are not comparable."""
    if (stored.kind, stored.layer) != (query.kind, query.layer):
        raise DataError(
            f"holds {stored.kind} features of {_layer(stored)}, the image has {query.kind} "
            f"features of {_layer(query)}; valid: the same for both"
        )
    if stored.weights != query.weights:
        raise DataError(
            f"holds features of {stored.model} (weights {stored.weights[:12]}…), not of "
            f"{query.model} (weights {query.weights[:12]}…); valid: the model that made them"
        )
    if stored.preprocessing != query.preprocessing:
        raise DataError(
            f"was made with images prepared by {stored.preprocessing.to_json()}, {query.model} "
            f"prepares them by {query.preprocessing.to_json()}; valid: the same for both"
        )


def _unit(vectors: Float32[ndarray, "N D"]) -> Float32[ndarray, "N D"]:
    """Vectors of length 1; zero vectors stay zero and are similar to none."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(length, np.finfo(np.float32).tiny)


def _best(scores: Float[ndarray, " N"], top: int) -> Int[ndarray, " K"]:
    """Indices of the highest scores in descending order; ties keep their order."""
    places = np.arange(len(scores))
    if len(scores) > top:
        least = np.partition(scores, len(scores) - top)[len(scores) - top]
        places = np.flatnonzero(scores >= least)
    return places[np.argsort(-scores[places], kind="stable")][:top]


def _layer(info: FeatureInfo) -> str:
    return "the last layer" if info.layer is None else f"layer {info.layer}"
