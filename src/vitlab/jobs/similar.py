"""`vitlab similar`: the images of a feature file that are most similar to one, or to a text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from numpy import ndarray
from PIL import Image

from vitlab.data.images import ArraySet
from vitlab.data.listing import open_named
from vitlab.errors import DataError, FileError, InputError, PreprocessingUnknown, WeightsError
from vitlab.evaluation.feature_file import FeatureInfo, FeatureReader, Rows, reading_features
from vitlab.evaluation.similar import CHUNK, check_same, check_text, check_vectors, nearest
from vitlab.images.contact_sheet import Tile, write_contact_sheet
from vitlab.images.statistics import tile_image
from vitlab.jobs.features import Embedder, Watch, open_embedder
from vitlab.models.config import Size, pair
from vitlab.weights.preparation import Stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """An image, and the cosine of its features with those of the query."""

    path: str
    label: str
    """Empty if unknown."""
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Similar:
    """The nearest images, the most similar first."""

    image: str | None
    text: str | None
    """The query, if it is not an image."""
    info: FeatureInfo
    searched: int
    """Images in the file."""
    matches: tuple[Match, ...]


def similar(
    features: Path,
    image: Path | None = None,
    *,
    text: str | None = None,
    top: int = 10,
    model: str | os.PathLike[str] | None = None,
    image_size: Size | None = None,
    preprocessing: Stated | None = None,
    watch: Watch | None = None,
) -> Similar:
    """Find the most similar images; the model is the one that made the features, or `model`.

    The query is an image, or a text for the `embedding` features of a CLIP or SigLIP.
    The only valid `image_size` is that of the features. Weights without known preprocessing get
    that of the features.
    """
    if top < 1:
        raise InputError(f"top {top}; valid: at least 1")
    _check_query(image, text)
    with reading_features(features) as reader, _naming(features):
        check_vectors(reader.info)
        if text is not None:
            check_text(reader.info)
        _check_size(reader.info, image_size)
        embedder = _embedder(features, reader.info, model, preprocessing)
        check_same(reader.info, embedder.info())
        query = _query(embedder, image, text)
        found = nearest(_watched(reader, watch), query, top=top)
        names = reader.names(found.rows.tolist())
    return Similar(
        image=None if image is None else os.fspath(image),
        text=text,
        info=reader.info,
        searched=reader.count,
        matches=tuple(
            Match(path=path, label=label, similarity=float(score))
            for (path, label), score in zip(names, found.similarity, strict=True)
        ),
    )


def _check_query(image: Path | None, text: str | None) -> None:
    if (image is None) == (text is None):
        found = "neither an image nor a text" if text is None else "an image and a text"
        raise InputError(f"{found} to compare with; valid: one of both")
    if text is not None and not text.strip():
        raise InputError("an empty text; valid: at least one word")


def _query(embedder: Embedder, image: Path | None, text: str | None) -> Float32[ndarray, " D"]:
    """Features of the image, or embedding of the text."""
    classifier, readout = embedder.classifier, embedder.readout
    if text is not None:
        found: Float32[ndarray, " D"] = classifier.text.embed([text])[0].numpy()
        return found
    assert image is not None
    return classifier.features(image, kind=readout.kind, layer=readout.layer)[0]


def write_sheet(found: Similar, path: Path) -> None:
    """Write a contact sheet of the most similar images, behind the image that was the query."""
    queries, name = [], f"“{found.text}”"
    if found.image is not None:
        image = Path(found.image)
        name = image.name
        queries = [Tile(image=tile_image(image), caption=name, group="the image")]
    tiles = (
        Tile(
            image=_picture(match.path, found.info.folder),
            caption=f"{match.similarity:.3f}  {match.label}\n{Path(match.path).name}",
            group="nearest first",
        )
        for match in found.matches
    )
    write_contact_sheet(path, [*queries, *tiles], title=f"Most like {name}")


def check_sheet(path: Path) -> None:
    """Raise if the sheet cannot have this name, before anything is computed."""
    if path.suffix.lower() != ".png":
        raise FileError(f"{path}: a contact sheet is a PNG; valid: a name that ends in .png")


@contextmanager
def _naming(features: Path) -> Iterator[None]:
    """Name the feature file in errors about features."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{features} {error}") from error.__cause__


def _check_size(info: FeatureInfo, size: Size | None) -> None:
    made = info.preprocessing.size
    if size is not None and pair(size) != made:
        found, valid = ("x".join(map(str, sides)) for sides in (pair(size), made))
        raise DataError(f"holds features at {valid} pixels, not at {found}; valid: {valid}")


def _embedder(
    features: Path,
    info: FeatureInfo,
    model: str | os.PathLike[str] | None,
    preprocessing: Stated | None,
) -> Embedder:
    wanted: Any = {"kind": info.kind, "layer": info.layer, "image_size": info.preprocessing.size}
    place = info.model if model is None else model
    try:
        try:
            return open_embedder(place, preprocessing=preprocessing, **wanted)
        except PreprocessingUnknown:
            return open_embedder(place, preprocessing=info.preprocessing, **wanted)
    except WeightsError as error:
        if model is not None:
            raise
        raise WeightsError(f"{error} (named by {features}; --model names another place)") from error


def _watched(reader: FeatureReader, watch: Watch | None) -> Iterator[Rows]:
    done = 0
    for chunk in reader.chunks(CHUNK):
        yield chunk
        done += len(chunk)
        if watch is not None:
            watch("images", done, reader.count)


def _picture(path: str, folder: str) -> Image.Image | Path:
    """Open an image of a dataset, or a file by the path in the features."""
    found = open_named(path)
    if isinstance(found, ArraySet):
        pixels = found.images[0].permute(1, 2, 0).squeeze(-1).contiguous().numpy()
        return Image.fromarray(pixels)
    return tile_image(Path(folder, path))
