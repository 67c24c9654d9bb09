"""The published checkpoints that have a name: `published.csv`, one line each.

Addresses are the publishers' own. Where a publisher tells only the beginning of the sha256 (in the
name of the file), that is what the table has; where nothing is told, the column is empty.
"""

import csv
import math
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from vitlab.download import LARGEST, RemoteFile
from vitlab.errors import UnknownName
from vitlab.models.config import ViTConfig, pair
from vitlab.models.variants import built_in, variant
from vitlab.preprocessing import Preprocessing
from vitlab.weights.beside import Beside
from vitlab.weights.bundled import bundled_models, bundled_name
from vitlab.weights.known import prepared
from vitlab.weights.reading import SUFFIXES

UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
SLACK = 1.5
"""Of a size that was rounded, up to which a file is fetched before its size is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One published file, and what its publisher says about it; None where nothing is said."""

    name: str
    """`MODEL.WEIGHTS`, such as `vit_b16_384.augreg`."""
    url: str
    size: str | None
    """As published, rounded: `330.285 MiB`."""
    sha256: str | None
    """As much of it as is published."""
    licence: str
    dataset: str | None
    """Whose classes the head has; None without a head."""
    preparation: str
    """A key of `known.PREPARATIONS`."""

    @property
    def model(self) -> str:
        """The name of the model that the weights are for."""
        return self.name.partition(".")[0]

    @property
    def config(self) -> ViTConfig:
        """The model by that name."""
        found = variant(self.model)
        assert isinstance(found, ViTConfig)
        return found

    @property
    def preprocessing(self) -> Preprocessing:
        """How the publisher prepared images."""
        return prepared(self.preparation, pair(self.config.image_size))

    @property
    def remote(self) -> RemoteFile:
        """The file as it is fetched."""
        checksum = None if self.sha256 is None else f"sha256:{self.sha256}"
        limit = LARGEST if self.size is None else math.ceil(self._published() * SLACK)
        return RemoteFile(url=self.url, size=None, checksum=checksum, limit=limit)

    @property
    def beside(self) -> Beside:
        """What a config file beside the weights would say."""
        return Beside(
            fields={"heads": self.config.heads},
            preprocessing=self.preprocessing,
            dataset=self.dataset,
            name=self.name,
            licence=self.licence,
        )

    def has_size(self, found: int) -> bool:
        """Whether so many bytes are the published size, as far as it was rounded."""
        if self.size is None:
            return True
        number, unit = self.size.split()
        half_a_digit = 0.5 * 10.0 ** -len(number.partition(".")[2])
        return abs(found / UNITS[unit] - float(number)) <= half_a_digit + 1e-9

    def _published(self) -> float:
        """The size in bytes, as far as it was rounded."""
        number, unit = (self.size or "").split()
        return float(number) * UNITS[unit]


@cache
def checkpoints() -> dict[str, Checkpoint]:
    """Every checkpoint of the table by name."""
    text = (files("vitlab.weights") / "published.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    rows = [{key: value or None for key, value in line.items()} for line in lines]
    return {str(row["name"]): Checkpoint(**row) for row in rows}  # type: ignore[arg-type]


def checkpoint(name: str) -> Checkpoint:
    """The checkpoint of that name."""
    if name not in checkpoints():
        raise UnknownName("weights", name, checkpoints())
    return checkpoints()[name]


def named(path: str | os.PathLike[str]) -> Checkpoint | None:
    """The checkpoint that a bare word names; None for a path, or a model inside the package.

    A word that is neither, but begins with a model's name, is a misspelt one.
    """
    text = os.fspath(path)
    if text in checkpoints():
        return checkpoints()[text]
    if bundled_name(path) is not None:
        return None
    model, dot, _ = text.partition(".")
    meant = dot and re.fullmatch(r"[\w.]+", text) and built_in(model)
    if meant and Path(text).suffix not in SUFFIXES and not Path(text).exists():
        raise UnknownName("weights", text, (*bundled_models(), *checkpoints()))
    return None
