"""I-JEPA through our class, and files that no class of ours can hold, each refused by one line."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import vitlab
from reference.foreign import converted, same_back, same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError
from vitlab.models.config import pair

declare()
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

IJEPA: dict[str, dict[str, Any]] = {
    "three heads": {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    | {"num_hidden_layers": 3, "image_size": 42, "patch_size": 14, "num_labels": 5},
    "not square": {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 28}
    | {"num_hidden_layers": 1, "image_size": (12, 20), "patch_size": 4, "num_channels": 2},
    "tanh": {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 96}
    | {"num_hidden_layers": 5, "image_size": 12, "patch_size": 6, "hidden_act": "gelu_new"}
    | {"layer_norm_eps": 1e-3, "qkv_bias": False},
}
TINY: dict[str, Any] = {"depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 3}


@pytest.mark.parametrize("case", IJEPA)
def test_ijepa_model(case: str, tmp_path: Path) -> None:
    size = IJEPA[case]
    theirs = transformers.IJepaModel(transformers.IJepaConfig(**size)).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path)
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()
    assert (ours.config.class_token, ours.config.pool) == (False, "mean")

    def tokens(images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = theirs(pixel_values=images).last_hidden_state
        return found

    features: Any = lambda images: ours.features(images).tokens  # noqa: E731
    same_logits(features, tokens, pair(size["image_size"]), ours.config.channels)


@pytest.mark.parametrize("case", IJEPA)
def test_ijepa_classifier(case: str, tmp_path: Path) -> None:
    size = IJEPA[case]
    theirs = transformers.IJepaForImageClassification(transformers.IJepaConfig(**size)).eval()
    fields = {
        "heads": size["num_attention_heads"],
        "gelu": "tanh" if "hidden_act" in size else "erf",
        "norm_eps": size.get("layer_norm_eps", 1e-12),
        "image_size": size["image_size"],
    }
    ours = converted(theirs, tmp_path, format="huggingface", **fields)
    sides = pair(size["image_size"])
    same_logits(ours, lambda x: theirs(pixel_values=x).logits, sides, ours.config.channels)
    theirs.save_pretrained(tmp_path / "folder")
    again = vitlab.load_weights(tmp_path / "folder")
    assert again.config == ours.config
    same_back(ours, theirs, tmp_path, format="huggingface")
    vitlab.save_weights(ours, tmp_path / "ours", format="huggingface")
    read = transformers.IJepaForImageClassification.from_pretrained(tmp_path / "ours").eval()
    same_logits(ours, lambda x: read(pixel_values=x).logits, sides, ours.config.channels)


def test_shards_load_by_their_index_and_not_alone(tmp_path: Path) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", **TINY).eval()
    randomise(theirs)
    state = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    parts = [dict(list(state.items())[part::2]) for part in (0, 1)]
    where: dict[str, str] = {}
    for file, tensors in zip(names, parts, strict=True):
        save_file(tensors, tmp_path / file)
        where |= dict.fromkeys(tensors, file)
    with pytest.raises(WeightsError, match="shard 2 of 2 alone; valid: the folder"):
        vitlab.load_weights(tmp_path / names[1])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    ours = vitlab.load_weights(tmp_path, heads=4)
    same_logits(ours, theirs, (224, 224))
    save_file(state, tmp_path / "whole-00001-of-00001.safetensors")
    whole = vitlab.load_weights(tmp_path / "whole-00001-of-00001.safetensors", heads=4)
    assert whole.config == ours.config


REFUSED = {
    "blocks.0.attn.qkv.SCB": "a quantised checkpoint",
    "encoder.layer.0.attention.attention.query.weight.absmax": "a quantised checkpoint",
    "blocks.0.mlp.fc1.weight.quant_state.bitsandbytes__nf4": "a quantised checkpoint",
    "visual.layer1.0.conv1.weight": "a CLIP with a ResNet",
    "visual.attnpool.k_proj.weight": "a CLIP with a ResNet",
    "layers.0.blocks.0.attn.relative_position_bias_table": "Swin",
}


@pytest.mark.parametrize("tensor", REFUSED)
def test_refused_by_one_line(tensor: str) -> None:
    with pytest.raises(WeightsError) as raised:
        vitlab.load_weights({tensor: torch.zeros(3), "patch_embed.proj.weight": torch.zeros(2, 2)})
    assert REFUSED[tensor] in str(raised.value)
    assert tensor in str(raised.value)
    assert "\n" not in str(raised.value)


def states(state: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Training states of several authors around the same tensors."""
    head = {"head.mlp.0.weight": torch.zeros(3, 60), "head.last_layer.weight_g": torch.zeros(3, 1)}
    module = {f"module.{name}": tensor for name, tensor in state.items()}
    backbone = {f"backbone.{name}": tensor for name, tensor in state.items()}
    return {
        "DINO": {"student": {**backbone}, "teacher": backbone | head, "epoch": 3},
        "DINOv2": {"teacher": backbone | {"dino_head.mlp.0.weight": torch.zeros(3, 60)}},
        "I-JEPA": {"encoder": module, "target_encoder": module, "predictor": {}, "epoch": 1},
        "MSN": {
            "target_encoder": module | {"module.fc.fc1.weight": torch.zeros(3, 60)},
            "prototypes": torch.zeros(3),
        },
        "MAE": {"model": state | {"decoder_pos_embed": torch.zeros(1, 3, 3)}},
        "EVA": {"module": state},
    }


@pytest.mark.parametrize("author", states({}))
def test_training_states_of_authors(author: str, tmp_path: Path) -> None:
    size = {"img_size": (24, 40), "patch_size": 8, "depth": 3, "num_classes": 0}
    theirs = timm.create_model("vit_tiny_patch16_224", embed_dim=60, num_heads=5, **size).eval()
    randomise(theirs)
    torch.save(states(theirs.state_dict())[author], tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=5, stored_image_size=(24, 40))
    same_logits(ours, theirs, (24, 40))
    vitlab.save_weights(ours, tmp_path / "back.pth", format="timm")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert {*back} == {*theirs.state_dict()}


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pt")
    with pytest.raises(WeightsError, match=r"a TorchScript archive, .* valid: torch\.save"):
        vitlab.load_weights(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"a": "../other.safetensors"}, "is not a file beside the index"),
        ({"a": "/etc/passwd"}, "is not a file beside the index"),
        ({"a": "nul\0.safetensors"}, "is not a file beside the index"),
        ({"a": ".."}, "cannot be read"),
        ({"a": ""}, "cannot be read"),
        ({"a": 3}, "no weight_map of tensor names to files"),
        ({"a": ["one.safetensors"]}, "no weight_map of tensor names to files"),
        ({"b": "one.safetensors"}, "tensor 'b' is missing in one.safetensors"),
        ({"a": "two.safetensors"}, "no such file"),
        (["one.safetensors"], "no weight_map of tensor names to files"),
    ],
)
def test_damaged_indexes_are_one_line(where: object, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (folder / "one.safetensors", tmp_path / "other.safetensors"):
        save_file({"a": torch.zeros(1)}, path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(WeightsError, match=message) as raised:
        vitlab.load_weights(folder)
    assert "\n" not in str(raised.value)
