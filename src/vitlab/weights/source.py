"""Origin and identity of a model's weights, and facts about their use; imports no torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vitlab.config import to_dict
from vitlab.errors import PreprocessingUnknown, VitlabError, WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import pair

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """Metadata read with the weights, and assumptions."""

    format: str
    path: Path
    preprocessing: Preprocessing | None = None
    channels: int | None = None
    """Channels of the images that the weights were made for; the model may have been adapted."""
    labels: tuple[str, ...] | None = None
    task: str = "single-label"
    """`single-label`, `multi-label` or `regression`, whose outputs are values in their unit."""
    name: str | None = None
    """Name of the weights in the table of published checkpoints."""
    licence: str | None = None
    known_classes: tuple[str, ...] = ()
    """Classes of a new head that keep their learned rows."""
    zero_head: bool = False
    """Every number of the head is zero: it has not been trained."""
    assumed: tuple[str, ...] = ()
    """Each default that neither tensors, nor a config file, nor a keyword decided."""
    ignored: tuple[str, ...] = ()
    """Tensors left out on purpose, such as the mask token of pre-training."""
    dialect: frozenset[str] = frozenset()
    """Naming of the format in the file; saving in the same format keeps it."""

    @property
    def warning(self) -> str | None:
        """Assumptions and the keywords that state them, as one line; None if there are none."""
        if not self.assumed:
            return None
        return (
            f"{self.path}: assumed {', '.join(self.assumed)}; to change it, pass a keyword, use "
            f"`vitlab convert --set KEY=VALUE`, or put the publisher's config.json beside the file"
        )

    def require_head(self) -> None:
        """Raise for a head that has not been trained."""
        if self.zero_head:
            raise WeightsError(
                f"{self.path.name}: every weight of the head is zero (on purpose in the 2020 "
                f"ImageNet-21k files, and in every new head): all classes would be equally likely; "
                f"fine-tune it first, with classes=N for classes of your own"
            )

    def require_preprocessing(self) -> Preprocessing:
        """Preprocessing of the images; raises if it is unknown."""
        if self.preprocessing is None:
            raise PreprocessingUnknown(
                f"{self.path.name}: nothing says how images must be prepared for these weights; "
                f"put the config.json or preprocessor_config.json of their publisher beside the "
                f"file, pass --preprocessing imagenet, half or FILE (or --mean and --std), or pass "
                f"preprocessing=Preprocessing(size=..., mean=..., std=...) in Python"
            )
        return self.preprocessing


def stored_preprocessing(content: Mapping[str, Any], name: str) -> Preprocessing | None:
    """Preprocessing from the content of a bundle's `config.json`; `name` is for errors."""
    stored, channels = content.get("preprocessing"), content["model"].get("channels", 3)
    if not stored:
        return None
    try:
        found = Preprocessing.from_json(stored)
    except VitlabError as error:
        raise WeightsError(f"{name}: preprocessing: {error}") from error
    if found.channels != channels:
        raise WeightsError(
            f"{name}: preprocessing of {found.channels} channels for a model of {channels}"
        )
    return found


# Identity: digests of everything that affects predictions.

HEAD_FIELDS = ("classes", "head", "representation_size")
TRAINING_FIELDS = ("dropout", "attention_dropout", "drop_path", "layer_scale", "position_std")
"""Fields that follow from tensors, or that affect training only."""
SIZE_FIELDS = ("image_size", "patch_size")
"""Fields in which 224 and (224, 224) are equal."""
HEAD = ("head.", "pre_logits.")
ADDED = {
    "patch_bias": True,
    "embed_norm": False,
    "rope": False,
    "rope_form": "axial",
    "norm_kind": "layer",
    "mlp_bias": True,
    "mlp_norm": False,
    "key_bias": True,
    "rope_periods": None,
    "relative_table": "none",
    "pool_heads": None,
    "pool_mlp_width": None,
    "unit_norm": False,
    "attention_norm": False,
    "position_std": None,
}
"""Options younger than the first digests. At these values they are left out, so that files written
before them stay valid; add every new option of `ViTConfig` here."""


def _described(config: Any) -> dict[str, Any]:
    """Settings as JSON-able values, without young options at their defaults."""
    return {k: v for k, v in to_dict(config).items() if k not in ADDED or v != ADDED[k]}


def fingerprint(model: "nn.Module", *, embedding: bool = False) -> str:
    """SHA-256 of config and tensors, without the head: the same in every file format.

    With `embedding`, the layer before the last one, such as the projection of a CLIP, counts.
    """
    left_out = HEAD[:1] if embedding else HEAD
    config = {
        key: pair(getattr(model.config, key)) if key in SIZE_FIELDS else value
        for key, value in _described(model.config).items()
        if key not in (*HEAD_FIELDS, *TRAINING_FIELDS)
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith(left_out):
            continue
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        digest.update(f"{name} {array.dtype.str} {tuple(tensor.shape)}".encode())
        digest.update(array.reshape(-1).data)
    return digest.hexdigest()


def network_digest(model: "nn.Module", *facts: Any) -> str:
    """Digest of config, tensors and `facts`: equal for equal models, whatever their file."""
    described = [_described(cast(Any, model).config), *facts]
    digest = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
