"""Folders of a whole CLIP and SigLIP of transformers: random, tiny, with tokenizer and config."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from reference.random_weights import randomise
from reference.torchvision_ops import declare
from weights.text_files import clip_vocabulary, siglip_pieces

SIZE = 28
VISION: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40} | {
    "num_hidden_layers": 2,
    "image_size": SIZE,
    "patch_size": 7,
}
TEXT: dict[str, Any] = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 28} | {
    "num_hidden_layers": 2,
    "max_position_embeddings": 17,
}
PROCESSOR: dict[str, Any] = {
    "do_resize": True,
    "size": {"height": SIZE, "width": SIZE},
    "resample": 3,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.6, 0.7],
}


def clip(folder: Path) -> nn.Module:
    """Write a CLIP; returns transformers' model."""
    transformers = _transformers()
    folder.mkdir(parents=True, exist_ok=True)
    count = clip_vocabulary(folder)
    ends = {"bos_token_id": count - 2, "eos_token_id": count - 1, "pad_token_id": count - 1}
    config = transformers.CLIPConfig(
        text_config={**TEXT, **ends, "vocab_size": count},
        vision_config=VISION,
        projection_dim=19,
    )
    return _saved(transformers.CLIPModel(config), folder, "CLIPImageProcessor", scale=3.0)


def siglip(folder: Path) -> nn.Module:
    """Write a SigLIP; returns transformers' model."""
    transformers = _transformers()
    folder.mkdir(parents=True, exist_ok=True)
    count = siglip_pieces(folder)
    config = transformers.SiglipConfig(
        text_config={**TEXT, "vocab_size": count, "projection_size": VISION["hidden_size"]},
        vision_config=VISION,
    )
    return _saved(transformers.SiglipModel(config), folder, "SiglipImageProcessor", scale=2.0)


WHOLE = {"clip": clip, "siglip": siglip}


def tokenizer_of(family: str, folder: Path) -> Any:
    """Transformers' tokenizer of such a folder."""
    transformers = _transformers()
    if family == "clip":
        return transformers.CLIPTokenizer.from_pretrained(folder)
    return transformers.SiglipTokenizer(str(folder / "spiece.model"))


def _transformers() -> Any:
    declare()
    return pytest.importorskip("transformers")


def _saved(theirs: nn.Module, folder: Path, processor: str, *, scale: float) -> nn.Module:
    randomise(theirs)
    theirs.logit_scale.data.fill_(scale)
    theirs.save_pretrained(folder)
    content = json.dumps({**PROCESSOR, "image_processor_type": processor})
    (folder / "preprocessor_config.json").write_text(content)
    return theirs.eval()
