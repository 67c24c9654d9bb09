"""Hugging Face's config.json: every model type and every key is right or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
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


@pytest.mark.parametrize(("kind", "name"), [("DPT", "dpt"), ("Yolos", "yolos")])
def test_other_model_types(kind: str, name: str, tmp_path: Path) -> None:
    extra = {"DPT": {"backbone_out_indices": [0, 0, 1, 1]}, "Yolos": {"image_size": [40, 40]}}[kind]
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
        ("use_swiglu_ffn", True),
        ("num_register_tokens", 4),
        ("query_bias", False),
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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label: valid: .* each of 0, 1, 2"),
        ({"id2label": ["a", "b"]}, "id2label: valid: .* each of 0, 1, 2"),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, "id2label contradicts"),
        ({"problem_type": "ranking"}, "problem_type 'ranking' is not supported"),
    ],
)
def test_contradictory_classes(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path, "ViT", "ForImageClassification", num_labels=2)
    change(tmp_path, **keys)
    with pytest.raises(WeightsError, match=message):
        vitlab.load_weights(tmp_path)


def test_a_config_without_type_and_heads_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "ViT")
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["model_type"], content["num_attention_heads"]
    path.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="model_type None is not supported"):
        vitlab.load_weights(tmp_path)


def processor(folder: Path, **keys: Any) -> None:
    saved(folder, "ViT")
    content = {"size": 40, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, **keys}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "keys",
    [
        {"do_flip_channel_order": True},
        {"do_pad": True},
        {"offset": True},
        {"do_thumbnail": True},
        {"crop_pct": 0.5},
        {"do_normalize": "no"},
        {"rescale_factor": 0},
        {"rescale_factor": "1/255"},
    ],
)
def test_steps_of_a_processor_that_cannot_be_expressed(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    processor(tmp_path, **keys)
    with pytest.raises(WeightsError, match=next(iter(keys))):
        vitlab.load_weights(tmp_path)


@pytest.mark.parametrize(
    ("keys", "factor"), [({"rescale_factor": 1 / 127.5}, 1 / 127.5), ({"do_rescale": False}, 1.0)]
)
def test_the_factor_of_a_processor(keys: dict[str, Any], factor: float, tmp_path: Path) -> None:
    processor(tmp_path, **keys)
    prepared = vitlab.load_weights(tmp_path).source.require_preprocessing()
    pixels = np.full((3, 40, 40), 200, np.uint8)
    assert prepared.normalise(pixels).mean() == pytest.approx((200 * factor - 0.5) / 0.25, rel=1e-4)
