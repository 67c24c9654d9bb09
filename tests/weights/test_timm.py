"""timm's models through our class: plain, hybrid, and with every later addition."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitlab
from reference.foreign import converted, same_back, same_logits, without_note
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError
from vitlab.weights.container import CONFIG_KEY
from vitlab.weights.formats import timm as timm_layout
from vitlab.weights.save import _theirs as theirs_of
from vitlab.weights.save import describe

declare()
timm = pytest.importorskip("timm")
hybrids = pytest.importorskip("timm.models.vision_transformer_hybrid")

# Different for every axis, so that no transposed tensor keeps its shape.
SMALL: dict[str, Any] = {
    "img_size": (40, 56),
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 7,
}
OPEN: dict[str, Any] = {"heads": 3, "image_size": (40, 56)}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "no qkv bias": ({"qkv_bias": False}, {}),
    "non-square patches": ({"patch_size": (10, 7)}, {}),
    "tanh": ({"act_layer": partial(nn.GELU, approximate="tanh")}, {"gelu": "tanh"}),
    "layer scale, qk norm": ({"init_values": 0.1, "qk_norm": True}, {"heads": 3}),
    "registers, all positioned": ({"reg_tokens": 4}, {}),
    "registers, none positioned": ({"reg_tokens": 4, "no_embed_class": True}, {}),
    "class token without position": ({"no_embed_class": True}, {}),
    "mean, fc_norm": ({"global_pool": "avg"}, {}),
    "mean without class token": ({"global_pool": "avg", "class_token": False}, {}),
    "mean, norm before": ({"global_pool": "avg", "fc_norm": False}, {"pool": "mean"}),
    "mean of all": (
        {"global_pool": "avg", "fc_norm": False, "pool_include_prefix": True},
        {"pool": "mean_all"},
    ),
    "attention pool": ({"global_pool": "map", "class_token": False}, {}),
    "no head, four channels": ({"num_classes": 0, "in_chans": 4}, {}),
    "embedding norm": ({"embed_norm_layer": partial(nn.LayerNorm, eps=1e-6)}, {}),
}


def small(**arguments: Any) -> nn.Module:
    norm = partial(nn.LayerNorm, eps=1e-6)
    model: nn.Module = timm.models.VisionTransformer(**{**SMALL, "norm_layer": norm, **arguments})
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_logits_there_and_tensors_back(case: str, tmp_path: Path) -> None:
    arguments, open_fields = CASES[case]
    theirs = small(**arguments)
    ours = converted(theirs, tmp_path, format="timm", **{**OPEN, **open_fields})
    same_logits(ours, theirs, (40, 56), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="timm")


@pytest.mark.parametrize(
    ("layers", "patch_size", "size"), [((), 8, 64), ((1, 2), 1, 64), ((2, 2, 2, 2), 1, 64)]
)
def test_hybrids(layers: tuple[int, ...], patch_size: int, size: int, tmp_path: Path) -> None:
    theirs = hybrids._create_vision_transformer_hybrid(
        "vit_tiny_r_s16_p8_224",
        backbone=hybrids._resnetv2(layers),
        img_size=size,
        patch_size=patch_size,
        embed_dim=48,
        depth=2,
        num_heads=3,
        num_classes=7,
    ).eval()
    ours = converted(theirs, tmp_path, format="timm", heads=3)
    assert ours.config.resnet_layers == layers
    assert ours.config.image_size == size
    same_logits(ours, theirs, (size, size))
    same_back(ours, theirs, tmp_path, format="timm")


def dinov2(registers: int) -> dict[str, torch.Tensor]:
    """The tensors of facebookresearch's files: timm's, but for the mask token and the registers."""
    torch.manual_seed(0)
    theirs = small(init_values=1.0, patch_size=14, img_size=56, num_classes=0)
    randomise(theirs)
    state = theirs.state_dict()
    state["mask_token"] = torch.zeros(1, 48)
    if registers:
        state["register_tokens"] = torch.randn(1, registers, 48)
    return state


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_loads_without_its_mask_token(registers: int, tmp_path: Path) -> None:
    path = tmp_path / "dinov2_vits14_pretrain.pth"
    torch.save(dinov2(registers), path)
    model = vitlab.load_weights(path, heads=3)
    config = model.config
    assert (config.registers, config.patch_size, config.position_prefix) == (registers, 14, "cls")
    assert model.source.ignored == ("mask_token",)
    assert model.source.require_preprocessing().mean == (0.485, 0.456, 0.406)
    vitlab.save_weights(model, tmp_path / "back.pth", format="timm")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert set(back) == set(dinov2(registers)) - {"mask_token"}


def test_deit_three_names_of_layer_scale(tmp_path: Path) -> None:
    theirs = small(init_values=0.1, no_embed_class=True)
    randomise(theirs)
    renamed = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor
        for name, tensor in theirs.state_dict().items()
    }
    torch.save({"model": renamed}, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", **OPEN)
    same_logits(ours, theirs, (40, 56))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_wrapping_prefixes_are_stripped(prefix: str, tmp_path: Path) -> None:
    state = {prefix + name: tensor for name, tensor in small().state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "a.pth")
    assert vitlab.load_weights(tmp_path / "a.pth", **OPEN).source.format == "timm"


def test_resizing_is_timms(tmp_path: Path) -> None:
    theirs = small(img_size=(40, 56))
    ours = converted(
        theirs, tmp_path, format="timm", heads=3, image_size=(64, 48), stored_image_size=(40, 56)
    )
    theirs.set_input_size(img_size=(64, 48))
    same_logits(ours, theirs, (64, 48))


def test_real_deit_classifies_like_timm(shared: Path) -> None:
    path = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    ours = vitlab.load_weights(path)
    theirs = timm.create_model("deit_tiny_patch16_224").eval()
    theirs.load_state_dict(ours_as_timm(path))
    same_logits(ours, theirs, (224, 224))
    preparation = ours.source.require_preprocessing()
    assert (preparation.size, preparation.crop) == ((224, 224), 0.875)
    assert not ours.source.zero_head
    assert "heads 3: head width 64" in ours.source.assumed


def ours_as_timm(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"head": "mlp"}, "head='mlp'; valid: 'linear'; vitlab convert --set head=linear"),
        ({"patch_norm": "both"}, "patch_norm='both'"),
        ({"norm": "post"}, "norm='post'"),
        ({"position": "relative"}, "position='relative'"),
        ({"attention": "lsa"}, "attention='lsa'"),
        ({"head_width": 5}, "head_width=5"),
        ({"unit_norm": True}, "unit_norm=True"),
        ({"pool": "cls_mean"}, "pool='cls_mean'"),
        ({"registers": 3}, "registers=3 with position_prefix='cls'"),
    ],
)
def test_what_timm_has_no_word_for_is_not_saved(
    config: dict[str, Any], named: str, tmp_path: Path
) -> None:
    base: dict[str, Any] = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 48, "patch_size": 8}
    model = vitlab.VisionTransformer(vitlab.ViTConfig(image_size=16, classes=3, **base, **config))
    with pytest.raises(WeightsError, match=named):
        vitlab.save_weights(model, tmp_path / "a.safetensors", format="timm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("width", "heads"), [(1280, 16), (1152, 16), (1024, 16)])
def test_heads_of_wide_published_models(width: int, heads: int, tmp_path: Path) -> None:
    config = vitlab.ViTConfig(
        width=width, depth=1, heads=heads, mlp_width=8, patch_size=2, image_size=4, classes=3
    )
    path = tmp_path / "huge.pth"
    vitlab.save_weights(vitlab.VisionTransformer(config), path, format="timm")
    loaded = vitlab.load_weights(without_note(path))
    assert loaded.config.heads == heads
    assert any(note.startswith(f"heads {heads}: ") for note in loaded.source.assumed)


def test_what_tensors_leave_open_is_noted(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"gelu": "tanh", "norm_eps": 1e-3, "pool": "mean", "heads": 8}
    config = vitlab.ViTConfig(
        width=32, depth=1, mlp_width=24, patch_size=4, image_size=(8, 12), classes=3, **changes
    )
    vitlab.save_weights(vitlab.VisionTransformer(config), tmp_path / "a.pth", format="timm")
    assert vitlab.load_weights(tmp_path / "a.pth").config == config


@pytest.mark.parametrize("prefix", ["all", "none"])
def test_our_registers_are_read_by_timm(prefix: Any, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"width": 48, "depth": 2, "heads": 3, "mlp_width": 192, "registers": 4}
    config = vitlab.ViTConfig(
        **fields, patch_size=8, image_size=(40, 56), classes=7, position_prefix=prefix
    )
    ours = vitlab.VisionTransformer(config).eval()
    randomise(ours)
    vitlab.save_weights(ours, tmp_path / "a.pth", format="timm")
    theirs = small(reg_tokens=4, no_embed_class=prefix == "none")
    theirs.load_state_dict(torch.load(tmp_path / "a.pth", weights_only=True))
    same_logits(ours, theirs, (40, 56))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_registers_that_timm_has_no_layout_for_are_read(suffix: str, tmp_path: Path) -> None:
    """Files of timm's names with a place for the class token alone, as vitlab wrote them once."""
    fields: dict[str, Any] = {"width": 48, "depth": 1, "heads": 3, "mlp_width": 56, "registers": 4}
    config = vitlab.ViTConfig(**fields, patch_size=8, image_size=24, classes=7)
    model = vitlab.VisionTransformer(config)
    rules = timm_layout.rules(config, frozenset(["reg_token"]))
    state = dict(theirs_of(rules, model.state_dict()))
    if suffix == ".pth":
        torch.save(state, tmp_path / "a.pth")
    else:
        save_file(state, tmp_path / "a.safetensors", {CONFIG_KEY: describe(model)})
    loaded = vitlab.load_weights(tmp_path / f"a{suffix}", heads=3)
    assert loaded.config.position_prefix == "cls"
    assert torch.equal(loaded.state_dict()["registers"], model.state_dict()["registers"])


def test_a_metric_beside_the_weights_hides_nothing(tmp_path: Path) -> None:
    content = {"best_acc1": torch.tensor(71.3), "state_dict": small().state_dict(), "epoch": 3}
    torch.save(content, tmp_path / "a.pth")
    assert vitlab.load_weights(tmp_path / "a.pth", **OPEN).source.format == "timm"
