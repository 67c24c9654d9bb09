"""DINOv2 and DINOv3 of transformers, and timm's relatives with rotary positions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.foreign import converted, same_back, same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.models.config import pair

declare()
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

SECOND: dict[str, dict[str, Any]] = {
    "three heads": {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3}
    | {"image_size": 42, "patch_size": 14},
    "giant": {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 1}
    | {"image_size": 20, "patch_size": 4, "use_swiglu_ffn": True, "num_channels": 2},
    "no bias": {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 5}
    | {"image_size": 12, "patch_size": 6, "qkv_bias": False, "layer_norm_eps": 1e-3},
}
THIRD: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3}
    | {"intermediate_size": 40, "image_size": (28, 42), "patch_size": 14}
    | {"num_register_tokens": 4},
    "plus": {"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 1}
    | {"intermediate_size": 28, "image_size": (20, 12), "patch_size": 4, "use_gated_mlp": True}
    | {"hidden_act": "silu"}
    | {"num_register_tokens": 1, "num_channels": 2},
    "other biases": {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 5}
    | {"intermediate_size": 24, "image_size": (18, 30), "patch_size": 6, "rope_theta": 7.0}
    | {"key_bias": True, "proj_bias": False, "mlp_bias": False, "hidden_act": "gelu_new"},
}


def last(theirs: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: theirs(pixel_values=images).last_hidden_state


def tokens(ours: vitlab.VisionTransformer) -> Any:
    return lambda images: ours.features(images).tokens


def known(size: dict[str, Any]) -> dict[str, Any]:
    """The fields that no tensor shows."""
    found: dict[str, Any] = {"heads": size["num_attention_heads"]}
    found |= {"norm_eps": size["layer_norm_eps"]} if "layer_norm_eps" in size else {}
    found |= {"gelu": "tanh"} if size.get("hidden_act") == "gelu_new" else {}
    return found | ({"rope_theta": size["rope_theta"]} if "rope_theta" in size else {})


@pytest.mark.parametrize("case", SECOND)
@pytest.mark.parametrize("registers", [0, 3])
def test_dinov2(registers: int, case: str, tmp_path: Path) -> None:
    name = "Dinov2WithRegisters" if registers else "Dinov2"
    size = SECOND[case] | ({"num_register_tokens": registers} if registers else {})
    theirs = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**size))
    ours = converted(theirs.eval(), tmp_path, format="huggingface-dino", **known(size))
    assert ours.config.registers == registers
    same_logits(tokens(ours), last(theirs), pair(size["image_size"]), ours.config.channels)
    same_logits(
        ours,
        lambda x: theirs(pixel_values=x).pooler_output,
        pair(size["image_size"]),
        ours.config.channels,
    )
    assert ours.source.ignored == ("embeddings.mask_token",)
    del theirs.embeddings.mask_token
    same_back(ours, theirs, tmp_path, format="huggingface-dino")


@pytest.mark.parametrize("case", SECOND)
@pytest.mark.parametrize("registers", [0, 3])
def test_folder_of_dinov2_in_published_names(registers: int, case: str, tmp_path: Path) -> None:
    name = "Dinov2WithRegisters" if registers else "Dinov2"
    size = SECOND[case] | ({"num_register_tokens": registers} if registers else {})
    theirs = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**size))
    randomise(theirs)
    theirs.eval().save_pretrained(tmp_path)
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()
    same_logits(tokens(ours), last(theirs), pair(size["image_size"]), ours.config.channels)


def test_published_names_of_the_swiglu_come_back(tmp_path: Path) -> None:
    size = SECOND["giant"]
    theirs = transformers.Dinov2Model(transformers.Dinov2Config(**size)).eval()
    randomise(theirs)
    published = {}
    for name, tensor in theirs.state_dict().items():
        if "mask_token" in name or ".up_proj." in name:
            continue
        new = name.replace("attention.q_proj", "attention.attention.query")
        new = new.replace("attention.k_proj", "attention.attention.key")
        new = new.replace("attention.v_proj", "attention.attention.value")
        new = new.replace("attention.o_proj", "attention.output.dense")
        new = new.replace("down_proj", "weights_out")
        if ".gate_proj." in name:
            up = theirs.state_dict()[name.replace("gate_proj", "up_proj")]
            new, tensor = new.replace("gate_proj", "weights_in"), torch.cat([tensor, up])
        published[new] = tensor
    torch.save(published, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=5)
    same_logits(tokens(ours), last(theirs), (20, 20), 2)
    vitlab.save_weights(ours, tmp_path / "b.pth", format="huggingface-dino")
    back = torch.load(tmp_path / "b.pth", weights_only=True)
    assert set(back) == set(published)
    assert all(torch.equal(back[name], tensor) for name, tensor in published.items())


@pytest.mark.parametrize("case", SECOND)
@pytest.mark.parametrize("registers", [0, 3])
def test_a_classifier_reads_class_token_and_mean(registers: int, case: str, tmp_path: Path) -> None:
    name = "Dinov2WithRegisters" if registers else "Dinov2"
    size = SECOND[case] | {"num_labels": 7} | ({"num_register_tokens": 3} if registers else {})
    config = getattr(transformers, f"{name}Config")(**size)
    theirs = getattr(transformers, f"{name}ForImageClassification")(config).eval()
    ours = converted(theirs, tmp_path, format="huggingface-dino", **known(size))
    assert (ours.config.pool, ours.config.classes) == ("cls_mean", 7)
    sides = pair(size["image_size"])
    same_logits(ours, lambda x: theirs(pixel_values=x).logits, sides, ours.config.channels)
    theirs.save_pretrained(tmp_path / "folder")
    assert vitlab.load_weights(tmp_path / "folder").config == ours.config
    del getattr(theirs, theirs.base_model_prefix).embeddings.mask_token
    same_back(ours, theirs, tmp_path, format="huggingface-dino")


@pytest.mark.parametrize("case", THIRD)
def test_dinov3(case: str, tmp_path: Path) -> None:
    size = THIRD[case]
    theirs = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**size)).eval()
    fields = known(size) | {"image_size": size["image_size"]}
    ours = converted(theirs, tmp_path, format="huggingface-dino", **fields)
    same_logits(tokens(ours), last(theirs), size["image_size"], ours.config.channels)
    assert ours.source.ignored == ("embeddings.mask_token",)
    del theirs.embeddings.mask_token
    same_back(ours, theirs, tmp_path, format="huggingface-dino")


@pytest.mark.parametrize("case", THIRD)
def test_folder_of_dinov3(case: str, tmp_path: Path) -> None:
    size = THIRD[case]
    theirs = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**size)).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path)
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()
    assert ours.config.image_size == size["image_size"]
    same_logits(tokens(ours), last(theirs), size["image_size"], ours.config.channels)
    other = vitlab.load_weights(tmp_path, image_size=tuple(2 * side for side in size["image_size"]))
    doubled = pair(other.config.image_size)
    same_logits(tokens(other), last(theirs), doubled, ours.config.channels)


EVA: dict[str, Any] = {"embed_dim": 48, "num_heads": 3, "num_classes": 7, "img_size": (56, 84)}
EVA |= {"patch_size": 14}
DINOV3 = {"position": "rope", "rope_form": "dinov3"}
EVA02 = {"rope": True, "rope_form": "eva", "rope_theta": 1e4, "position_grid": (16, 16)}
ROPE = {"position": "rope", "rope_form": "axial"}
TIMM: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dinov3": ("vit_small_patch16_dinov3", {"depth": 3}, {**DINOV3, "pool": "mean"}),
    "dinov3 bias": ("vit_small_patch16_dinov3_qkvb", {"depth": 1}, {**DINOV3, "pool": "mean"}),
    "dinov3 plus": (
        "vit_small_plus_patch16_dinov3",
        {"depth": 5, "in_chans": 2, "img_size": (42, 28)},
        {**DINOV3, "pool": "mean"},
    ),
    "eva02 tiny": ("eva02_tiny_patch14_224", {"depth": 3}, EVA02),
    "eva02 base": ("eva02_base_patch14_448", {"depth": 1, "img_size": (28, 70)}, EVA02),
    "eva02 one channel": ("eva02_small_patch14_224", {"depth": 2, "in_chans": 1}, EVA02),
    "rope": ("vit_base_patch16_rope_224", {"depth": 3}, ROPE),
    "rope and table": ("vit_base_patch16_rope_ape_224", {"depth": 1}, {"rope": True}),
    "rope with registers": (
        "vit_betwixt_patch16_rope_reg4_gap_256",
        {"depth": 2},
        {"position": "rope", "rope_form": "eva", "rope_theta": 1e4, "position_grid": (16, 16)},
    ),
}


@pytest.mark.parametrize("case", TIMM)
def test_timm(case: str, tmp_path: Path) -> None:
    name, arguments, fields = TIMM[case]
    arguments = EVA | arguments
    theirs = timm.create_model(name, **arguments).eval()
    size = arguments["img_size"]
    changes = fields | {"heads": 3, "image_size": size}
    if "pos_embed" in theirs.state_dict():
        changes["stored_image_size"] = size
    ours = converted(theirs, tmp_path, format="timm", **changes)
    same_logits(ours, theirs, size, ours.config.channels)
    same_back(ours, theirs, tmp_path, format="timm")
    assert vitlab.load_weights(tmp_path / "back.pth").config == ours.config, "by the file's note"
