"""Hugging Face's config.json: every model type and every key is right or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.foreign import same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import VitlabError, WeightsError

declare()
transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "image_size": 40,
    "patch_size": 8,
}
"""Heads of 32, where 64 would be assumed."""


def saved(folder: Path, kind: str, model: str = "Model", **changes: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    theirs: nn.Module = getattr(transformers, kind + model)(config).eval()
    randomise(theirs)
    theirs.save_pretrained(folder)
    return theirs


def change(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("eps", [1e-12, 1e-3])
def test_msn(act: str, eps: float, tmp_path: Path) -> None:
    theirs = saved(tmp_path, "ViTMSN", hidden_act=act, layer_norm_eps=eps, qkv_bias=False)
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()
    same_logits(ours, lambda x: theirs(x).last_hidden_state[:, 0], (40, 40))


def test_mae(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "ViTMAE", mask_ratio=0.0)
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()

    def features(images: Tensor) -> Tensor:
        order = torch.arange(25.0).expand(len(images), 25)
        tokens: Tensor = theirs(images, noise=order).last_hidden_state
        return tokens[:, 0]

    same_logits(ours, features, (40, 40))


@pytest.mark.parametrize(
    ("kind", "name"), [("DPT", "dpt"), ("IJepa", "ijepa"), ("DeiT", "deit"), ("Dinov2", "dinov2")]
)
def test_other_model_types(kind: str, name: str, tmp_path: Path) -> None:
    extra = {"backbone_out_indices": [0, 0, 1, 1]} if kind == "DPT" else {}
    saved(tmp_path, kind, **extra)
    with pytest.raises(WeightsError, match=f"model_type '{name}' is not supported; valid: vit,"):
        vitlab.load_weights(tmp_path)


def test_unknown_type_loads_if_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = saved(tmp_path, "ViT", "ForImageClassification")
    change(tmp_path, model_type="my_vit", my_option=3)
    ours = vitlab.load_weights(tmp_path, trust_architecture=True)
    same_logits(ours, lambda x: theirs(x).logits, (40, 40))
    (record,) = caplog.records
    assert "model_type 'my_vit' is a plain ViT" in record.getMessage()
    assert "'my_option'" in record.getMessage()


@pytest.mark.parametrize("kind", ["ViT", "ViTMAE", "ViTMSN"])
def test_every_key_of_transformers_is_classified(kind: str, tmp_path: Path) -> None:
    """All keys with their defaults, as older releases wrote them."""
    theirs = saved(tmp_path, kind)
    change(tmp_path, **json.loads(theirs.config.to_json_string(use_diff=False)))
    assert vitlab.load_weights(tmp_path).config.heads == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "relu"),
        ("hidden_act", None),
        ("pooler_act", "relu"),
        ("num_attention_heads", "4"),
        ("num_attention_heads", 3),
        ("num_attention_heads", 0),
        ("layer_norm_eps", "small"),
        ("layer_norm_eps", -1.0),
        ("qkv_bias", False),
        ("num_channels", 1),
        ("image_size", {"height": 40}),
        ("pruned_heads", {"0": [1]}),
        ("architectures", ["ViTWithRotaryPositions"]),
        ("model_type", None),
        ("model_type", ["vit"]),
        ("rope_theta", 100.0),
        ("quantization_config", {"bits": 8}),
    ],
)
def test_refused_key(key: str, value: Any, tmp_path: Path) -> None:
    saved(tmp_path, "ViT", "ForImageClassification")
    change(tmp_path, **{key: value})
    words = {"num_attention_heads": "heads", "num_channels": "channels", "model_type": "config"}
    words |= {"architectures": "architecture 'ViTWith"}
    with pytest.raises(VitlabError, match=words.get(key, key)):
        vitlab.load_weights(tmp_path)
