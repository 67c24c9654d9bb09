"""What an exported model says of itself in its metadata; read without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import VitlabError, WeightsError
from vitlab.weights.bundle_files import checked_content

CONFIG_KEY, FACTS_KEY = "vitlab", "vitlab_export"
"""Metadata: what a bundle's `config.json` says, and `Facts`."""
Quantized = Literal["int8", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What an engine must know of an exported model besides its config."""

    weights: str | None
    """SHA-256 of the `model.safetensors` that it was made of; None: it came of no bundle."""
    preprocess_inside: bool
    """The model takes 8-bit pixels and normalises them itself."""
    quantize: Quantized | None
    zero_head: bool
    """Every number of the head is zero: it has not been trained."""
    batch: int | None
    """Images at once; None: any number."""
    output_bytes: int
    """Of the largest intermediate result for one image."""
    peak_bytes: int
    """Of all that is in memory at once for one image, the weights left out."""
    weight_bytes: int
    """Of the weights, as they are computed with."""
    merge_tokens: int = 0
    """Tokens that are merged in each block."""
    network: str | None = None
    """`network_digest` of what it was made of, before anything was quantised or merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployed:
    """The metadata of an exported model."""

    config: Mapping[str, Any]
    facts: Facts

    def metadata(self) -> dict[str, str]:
        """As text under the keys of the file's metadata."""
        return {
            CONFIG_KEY: json.dumps(dict(self.config)),
            FACTS_KEY: json.dumps(to_dict(self.facts)),
        }


def read_deployed(metadata: Mapping[str, str], name: str) -> Deployed:
    """The metadata of the file of this name; WeightsError where it was not exported by vitlab."""
    if not {CONFIG_KEY, FACTS_KEY} <= set(metadata):
        raise WeightsError(
            f"{name}: no labels and preprocessing in its metadata; valid: what `vitlab export` "
            f"writes"
        )
    try:
        config = parse_json(metadata[CONFIG_KEY])
        facts = from_dict(Facts, parse_json(metadata[FACTS_KEY]))
    except (ValueError, VitlabError) as error:
        raise WeightsError(f"{name}: damaged metadata ({error})") from error
    return Deployed(config=checked_content(config, f"{name}: metadata"), facts=facts)
