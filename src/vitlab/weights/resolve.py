"""Names of models: published checkpoints, models inside the package, and paths on disk.

Published checkpoints are the lines of `published.csv`. Addresses are the publishers' own. If a
publisher states only the beginning of the sha256 (in the name of the file), the table has that; if
none is stated, the column is empty.

Models inside the package are bundles in `vitlab/bundled`, each in its folder MODEL.DATA. The full
name refers to it, and DATA alone to the first of its models. A bare word is looked up as such a
name first; `./DATA` or a `Path` is a path on disk.
"""

import csv
import math
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitlab.errors import UnknownName, WeightsError, near
from vitlab.images.preprocessing import (
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Preprocessing,
)
from vitlab.io.download import LARGEST, RemoteFile
from vitlab.models.config import ViTConfig, pair
from vitlab.models.variants import TimmName, built_in, parse_timm, variant
from vitlab.registry import DATASETS, resolve_entry
from vitlab.weights.bundle import CONFIG, WEIGHTS, find_bundle
from vitlab.weights.reading import SUFFIXES
from vitlab.weights.sidecar import Sidecar

# Published files by name: their content does not distinguish them.


IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
PREPARATIONS: dict[str, dict[str, Any]] = {
    "google": {"interpolation": "bilinear", "mean": HALF, "std": HALF, "keep_aspect": False},
    "deit": {"crop": 224 / 256, "interpolation": "bicubic", **IMAGENET},
    "deit3": {"crop": 1.0, "interpolation": "bicubic", **IMAGENET},
    "torchvision": {"crop": 224 / 256, "interpolation": "bilinear", **IMAGENET},
    "torchvision_l16": {"crop": 224 / 242, "interpolation": "bilinear", **IMAGENET},
    "swag": {"crop": 1.0, "interpolation": "bicubic", **IMAGENET},
    "dino": {"crop": 224 / 256, "interpolation": "bicubic", **IMAGENET},
}
"""Preprocessing of each publisher, except the size. Google resizes without cropping, to [-1, 1]."""


FILES = (
    ("google", r"(imagenet21k(\+imagenet2012)?_)?(R\d+\+)?ViT-[BLH][_-]\d+.*\.npz", "google"),
    ("google", r"(R\d*_)?(Ti|S|B|L)_\d+(-i1k|-i21k|-sam)?[^/]*\.npz", "google"),
    ("google", r"(R\d+\+)?(ViT-)?[BLH]_\d+(_.*)?\.npz", "google"),
    ("timm", r"deit_(tiny|small|base)_patch\d+_\d+.*", "deit"),
    ("timm", r"deit_?3_(small|medium|base|large|huge)_(patch\d+_)?\d+.*", "deit3"),
    ("torchvision", r"vit_l_16-[0-9a-f]+\.pth", "torchvision_l16"),
    ("torchvision", r"vit_[blh]_\d+-[0-9a-f]+\.pth", "torchvision"),
    ("torchvision", r"vit_[blh]_\d+_(lc_)?swag-[0-9a-f]+\.pth", "swag"),
    ("timm", r"dino(v2)?_.*", "dino"),
)
"""Format, name and preparation: the paper's release and AugReg, DeiT, torchvision, SWAG, DINO.

Those of them that have a head of 1,000 classes have the classes of ImageNet-1k.
"""


def known_preparation(name: str, format: str) -> str | None:
    """Preprocessing of a file of that name, if its content has the expected format."""
    for its_format, pattern, preparation in FILES:
        if format == its_format and re.fullmatch(pattern, name):
            return preparation
    return None


def known_licence(name: str) -> str | None:
    """Licence of a published file of that name, if all files of that name have the same."""
    found = {each.licence for each in checkpoints().values() if each.remote.name == name}
    return found.pop() if len(found) == 1 else None


def prepared(preparation: str, size: tuple[int, int]) -> Preprocessing:
    """Preprocessing of the publisher, for images of `size`."""
    return Preprocessing(size=size, **PREPARATIONS[preparation])


CLASSES = {"imagenet-1k": 1000, "imagenet-21k": 21843, None: 0}
"""Classes of the head of published files, by their dataset."""
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
SLACK = 1.5
"""Tolerance of a rounded size, up to which a file is fetched before its size is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One published file, with its publisher's statements; None if not stated."""

    name: str
    """`MODEL.WEIGHTS`, such as `vit_b16_384.augreg`."""
    url: str
    size: str | None
    """As published, rounded: `330.285 MiB`."""
    sha256: str | None
    """Published digits of the digest."""
    licence: str
    dataset: str | None
    """Dataset of the head's classes; None without a head."""
    preparation: str
    """A key of `PREPARATIONS`."""

    @property
    def model(self) -> str:
        """Name of the model that the weights are for."""
        return self.name.partition(".")[0]

    @property
    def config(self) -> ViTConfig:
        """Config of that model."""
        found = variant(self.model)
        assert isinstance(found, ViTConfig)
        return found

    @property
    def classes(self) -> int:
        """Number of classes of the head; 0: none."""
        return CLASSES[self.dataset]

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the publisher."""
        return prepared(self.preparation, pair(self.config.image_size))

    @property
    def remote(self) -> RemoteFile:
        """File as it is fetched."""
        checksum = None if self.sha256 is None else f"sha256:{self.sha256}"
        limit = LARGEST if self.size is None else math.ceil(self._published() * SLACK)
        return RemoteFile(url=self.url, size=None, checksum=checksum, limit=limit)

    @property
    def beside(self) -> Sidecar:
        """Equivalent of a config file beside the weights."""
        return Sidecar(
            fields={"heads": self.config.heads},
            preprocessing=self.preprocessing,
            dataset=self.dataset,
            name=self.name,
            licence=self.licence,
        )

    def has_size(self, found: int) -> bool:
        """True if the number of bytes matches the published size, up to its rounding."""
        if self.size is None:
            return True
        number, unit = self.size.split()
        half_a_digit = 0.5 * 10.0 ** -len(number.partition(".")[2])
        return abs(found / UNITS[unit] - float(number)) <= half_a_digit + 1e-9

    def _published(self) -> float:
        """Size in bytes, and its rounding."""
        number, unit = (self.size or "").split()
        return float(number) * UNITS[unit]


@cache
def checkpoints() -> dict[str, Checkpoint]:
    """Every checkpoint of the table by name."""
    text = (files("vitlab.weights") / "published.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    rows = [{key: value or None for key, value in line.items()} for line in lines]
    return {str(row["name"]): Checkpoint(**row) for row in rows}  # type: ignore[arg-type]


TAGS = {
    "vit": {
        "augreg_in21k": "augreg_in21k",
        "augreg_in21k_ft_in1k": "augreg",
        "augreg_in1k": "augreg_in1k",
        "orig_in21k": "in21k",
        "orig_in21k_ft_in1k": "in21k_in1k",
        "sam_in1k": "sam",
    },
    "deit": {"fb_in1k": "deit"},
    "deit3": {"fb_in1k": "deit3", "fb_in22k_ft_in1k": "deit3_in21k"},
}
"""Weights by family and tag of timm's names."""
DEFAULTS = {
    "vit": ("augreg", "deit", "in21k_in1k", "augreg_in1k", "augreg_in21k", "in21k"),
    "deit": ("deit",),
    "deit3": ("deit3",),
}
"""Weights that `pretrained=True` means, by family: the best classifiers of ImageNet-1k first."""


def default_weights(model: str) -> str:
    """Published weights that `pretrained=True` means for a model, by our name or timm's."""
    parts = parse_timm(model)
    if parts is not None and parts.tag is not None:
        return _tagged(model, parts)
    ours, family = (model, "vit") if parts is None else (parts.model, parts.family)
    found = [name for word in DEFAULTS[family] if (name := f"{ours}.{word}") in checkpoints()]
    if not found:
        raise WeightsError(
            f"pretrained=True: no published weights of {model}; valid: a name of "
            f"`vitlab weights list`, a file or hf:OWNER/NAME"
        )
    return found[0]


def _tagged(name: str, parts: TimmName) -> str:
    """Published weights that a name of timm with a tag means."""
    found = f"{parts.model}.{TAGS[parts.family].get(str(parts.tag))}"
    if found in checkpoints():
        return found
    known = [each for each in checkpoints() if each.startswith(f"{parts.model}.")]
    valid = ", ".join(known) or "a name of `vitlab weights list`"
    raise WeightsError(f"{name}: no published weights of that tag; valid: {valid}")


def checkpoint(name: str) -> Checkpoint:
    """Checkpoint of that name."""
    name = _from_timm(name) or name
    if name not in checkpoints():
        raise UnknownName("weights", name, checkpoints())
    return checkpoints()[name]


# Resolve a name or path: inside the package, published, or on disk.


FOLDER = Path(__file__).resolve().parents[1] / "bundled"
HUB = "hf:"
"""Prefix of an address on the Hugging Face hub."""
WORD = re.compile(r"\w[\w.-]*")


def bundled_models() -> dict[str, Path]:
    """Folder of every model inside the package, by its full name."""
    if not FOLDER.is_dir():
        return {}
    return {folder.name: folder for folder in sorted(FOLDER.iterdir()) if _is_whole(folder)}


def data_of(name: str) -> str:
    """DATA of MODEL.DATA."""
    return name.partition(".")[2]


def short_name(name: str) -> str | None:
    """DATA, which means the first of its models by name; None for the others."""
    first = next(other for other in bundled_models() if data_of(other) == data_of(name))
    return data_of(name) if first == name else None


def bundled_names() -> tuple[str, ...]:
    """All names of models inside the package, the short ones first."""
    return (*filter(None, map(short_name, bundled_models())), *bundled_models())


def bundled_name(model: str | os.PathLike[str]) -> str | None:
    """Full name of the model inside the package; None for any other word."""
    if not isinstance(model, str):
        return None
    return next((name for name in bundled_models() if model in (name, data_of(name))), None)


def bundled_folder(model: str | os.PathLike[str]) -> Path | None:
    """Folder of the model inside the package; None for any other word."""
    name = bundled_name(model)
    return None if name is None else FOLDER / name


def _is_whole(folder: Path) -> bool:
    return bool(data_of(folder.name)) and (folder / CONFIG).is_file()


def resolve(model: str | os.PathLike[str]) -> Checkpoint | Path:
    """Published checkpoint of a name, or the path of a bundle or a weight file."""
    return named(model) or find_bundle(locate(model))


def named(path: str | os.PathLike[str]) -> Checkpoint | None:
    """Checkpoint of a bare word; None for a path, or a model inside the package.

    A name of timm with a tag stands for ours. Any other word that begins with a model's name is a
    misspelt one.
    """
    text = os.fspath(path)
    if text in checkpoints():
        return checkpoints()[text]
    if bundled_name(path) is not None:
        return None
    if (theirs := _from_timm(text)) is not None:
        return checkpoints()[theirs]
    model, dot, _ = text.partition(".")
    meant = dot and re.fullmatch(r"[\w.]+", text) and built_in(model)
    if meant and Path(text).suffix not in SUFFIXES and not Path(text).exists():
        raise UnknownName("weights", text, (*bundled_models(), *checkpoints()))
    return None


def _from_timm(name: str) -> str | None:
    """Our name of weights that have timm's, with its tag; None for any other word and for files."""
    parts = parse_timm(name)
    if parts is None or parts.tag is None or f".{parts.tag}" in SUFFIXES or Path(name).exists():
        return None
    return _tagged(name, parts)


def locate(model: str | os.PathLike[str]) -> Path:
    """Path of a model; `hf:OWNER/NAME` is downloaded.

    A bare word that is neither a name nor on disk raises.
    """
    inside = bundled_folder(model)
    if inside is not None:
        return inside
    if isinstance(model, str) and model.startswith(HUB):
        folder: Path = resolve_entry("vitlab.weights.hub:pull")(model).folder
        return folder
    path = Path(model)
    word = isinstance(model, str) and WORD.fullmatch(model) and path.suffix not in SUFFIXES
    if word and not path.exists():
        raise WeightsError(_unknown(os.fspath(model)))
    return path


def _unknown(word: str) -> str:
    inside = bundled_names()
    theirs = parse_timm(word)
    meant = near(word, (*inside, *checkpoints()))
    if theirs is not None:
        meant = [name for name in checkpoints() if name.startswith(f"{theirs.model}.")]
    message = [f"unknown model {word!r}, and no such file or folder"]
    if word in DATASETS:
        message.append("it is a dataset: are model and data swapped?")
    if meant:
        message.append(f"did you mean {', '.join(meant)}?")
    own = f"{', '.join(inside)} (inside the package), " if inside else ""
    message.append(f"valid: {own}a name of `vitlab weights list`, a run, a bundle or a weight file")
    return "; ".join(message)


def title_of(weights: str | os.PathLike[str]) -> str:
    """Title of weights: their name, or that of their file or run."""
    word = os.fspath(weights)
    known = bundled_name(weights) or (word if named(weights) is not None else None)
    return known or _title(Path(word))


def _title(path: Path) -> str:
    """Name of a file without its ending, of a run, or of the run of a bundle."""
    path = path.absolute()
    if path.name == WEIGHTS:  # as in every bundle: its folder says more
        path = path.parent
    elif path.suffix in SUFFIXES:
        return path.stem
    return path.parent.name if path.name == "bundle" else path.name
