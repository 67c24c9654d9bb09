"""Distilled DeiT, BEiT, EVA-02-CLIP, PE, RoPE-Mixed and others of timm, and authors' own files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.foreign import converted, same_back, same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError
from vitlab.weights.formats.timm_blocks import beit_index

declare()
timm = pytest.importorskip("timm")

# Three configurations of a family: odd depths, images that are not square, other channels.
SIZES: tuple[dict[str, Any], ...] = (
    {"embed_dim": 48, "num_heads": 3, "depth": 3, "img_size": (40, 56), "num_classes": 7},
    {"embed_dim": 40, "num_heads": 5, "depth": 1, "img_size": (24, 16), "in_chans": 2},
    {"embed_dim": 64, "num_heads": 4, "depth": 5, "img_size": 32, "num_classes": 0},
)
EVA = {"rope": True, "rope_form": "eva", "rope_theta": 1e4, "position_grid": (16, 16)}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", {}),
    "BEiT": ("beit_base_patch16_224", {}),
    "BEiT v2": ("beitv2_base_patch16_224", {}),
    "BEiT-3": ("beit3_base_patch16_224", {"norm_eps": 1e-5}),
    "EVA-02-CLIP": ("eva02_base_patch16_clip_224", EVA),
    "EVA-02-CLIP enormous": ("eva02_enormous_patch14_clip_224", {"norm": "res_post"}),
    "RPN": ("vit_base_patch16_rpn_224", {"norm": "res_post"}),
    "RoPE-Mixed": ("vit_small_patch16_rope_mixed_224", {}),
    "RoPE-Mixed and table": ("vit_small_patch16_rope_mixed_ape_224", {}),
    "PE core": ("vit_pe_core_base_patch16_224", {}),
    "PE spatial": (
        "vit_pe_spatial_base_patch16_512",
        {"norm_at": "none", "rope": True, "rope_form": "pe", "rope_theta": 1e4, "pool": "mean"},
    ),
    "SBB with registers and attention pooling": ("vit_so150m_patch16_reg4_map_256", {}),
    "InternViT": ("vit_intern300m_patch14_448", {"norm_at": "none"}),
    "AIMv2": ("aimv2_large_patch14_224", {}),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_timm(family: str, size: dict[str, Any], tmp_path: Path) -> None:
    name, fields = FAMILIES[family]
    arguments = {**size, "patch_size": 8}
    theirs = timm.create_model(name, **arguments).eval()
    image_size = size["img_size"]
    known = {**fields, "heads": size["num_heads"], "image_size": image_size}
    if name.startswith(("vit_pe_core", "vit_pe_spatial")):
        side = theirs.rope.ref_feat_shape
        known["position_grid"] = tuple(side)
    ours = converted(theirs, tmp_path, format="timm", stored_image_size=image_size, **known)
    same_logits(ours, theirs, vitlab.models.config.pair(image_size), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="timm")


@pytest.mark.parametrize("case", ["own", "shared"])
def test_beits_own_file_has_an_index(case: str, tmp_path: Path) -> None:
    shared = case == "shared"
    theirs = timm.models.Beit(
        img_size=(24, 40),
        patch_size=8,
        embed_dim=24,
        depth=3,
        num_heads=3,
        num_classes=5,
        qkv_bias=True,
        use_abs_pos_emb=shared,
        use_rel_pos_bias=not shared,
        use_shared_rel_pos_bias=shared,
        init_values=0.1,
    ).eval()
    randomise(theirs)
    index = (
        theirs.rel_pos_bias.relative_position_index
        if shared
        else (theirs.blocks[0].attn.relative_position_index)
    )
    assert torch.equal(beit_index((3, 5)), index)
    names = ["rel_pos_bias"] if shared else [f"blocks.{i}.attn" for i in range(3)]
    state = theirs.state_dict() | {f"{name}.relative_position_index": index for name in names}
    torch.save({"model": state}, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=3, stored_image_size=(24, 40))
    same_logits(ours, theirs, (24, 40))
    assert len({id(p) for p in ours.parameters()}) == len(list(ours.parameters()))
    vitlab.save_weights(ours, tmp_path / "b.safetensors", format="timm")
    same_state(tmp_path / "b.safetensors", state)


def same_state(path: Path, state: dict[str, Tensor]) -> None:
    from safetensors.torch import load_file

    back = load_file(path)
    assert set(back) == set(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype, name
        assert torch.equal(back[name], tensor), name


@pytest.mark.parametrize(
    "name", ["eva02_base_patch16_clip_224", "eva02_large_patch14_224", "eva02_tiny_patch14_224"]
)
def test_eva02s_own_names(name: str, tmp_path: Path) -> None:
    size = (40, 56)
    theirs = timm.create_model(
        name, patch_size=8, img_size=size, depth=3, embed_dim=48, num_heads=3, num_classes=5
    ).eval()
    randomise(theirs)
    own = {"mlp.norm": "mlp.ffn_ln", "attn.norm": "attn.inner_attn_ln"}
    own |= {"mlp.fc1_g": "mlp.w1", "mlp.fc1_x": "mlp.w2", "q_proj.bias": "q_bias"}
    own |= {"v_proj.bias": "v_bias"}
    own |= {} if "tiny" in name else {"mlp.fc2": "mlp.w3"}
    state = {}
    for key, tensor in theirs.state_dict().items():
        for new, old in own.items():
            key = key.replace(new, old)
        state[key] = tensor
    torch.save(state | {"rope.freqs_cos": torch.zeros(35, 16)}, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=3, stored_image_size=size)
    assert ours.source.ignored == ("rope.freqs_cos",)
    same_logits(ours, theirs, size)
    vitlab.save_weights(ours, tmp_path / "b.safetensors", format="timm")
    same_state(tmp_path / "b.safetensors", state)


@pytest.mark.parametrize(
    "name", ["vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3_qkvb"]
)
@pytest.mark.parametrize("rounded", [False, True])
def test_metas_own_dinov3(name: str, rounded: bool, tmp_path: Path) -> None:
    """Its periods are those of the file, which may be rounded; its keys have a masked bias."""
    size = (32, 48)
    theirs = timm.create_model(
        name,
        patch_size=8,
        img_size=size,
        depth=3,
        embed_dim=48,
        num_heads=3,
        num_classes=5,
        global_pool="token",
    ).eval()
    randomise(theirs)
    if rounded:
        periods = theirs.rope.periods.bfloat16().float()
        theirs.rope.periods.copy_(periods)
        theirs.rope.pos_embed_cached = None
        theirs.rope.feat_shape = (4, 6)
    state: dict[str, Tensor] = {"rope_embed.periods": theirs.rope.periods.clone()}
    own = {
        "mlp.fc1_g": "mlp.w1",
        "mlp.fc1_x": "mlp.w2",
        "gamma_": "ls",
        "reg_token": "storage_tokens",
    }
    for key, tensor in theirs.state_dict().items():
        if key.endswith("v_bias"):
            continue
        if key.endswith("q_bias"):
            value = theirs.state_dict()[key.replace("q_bias", "v_bias")]
            key = key.replace("q_bias", "qkv.bias")
            mask = torch.ones(3, len(tensor))
            mask[1] = 0
            state[f"{key}_mask"] = mask.flatten()
            tensor = torch.cat([tensor, torch.zeros_like(tensor), value])
        for new, old in own.items():
            key = key.replace(new, old)
        key = key.replace("mlp.fc2", "mlp.w3") if "plus" in name else key
        key = f"{key}.gamma" if key.endswith(("ls1", "ls2")) else key
        state[key] = tensor
    torch.save(state | {"mask_token": torch.zeros(1, 48)}, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=3, image_size=size)
    assert ours.config.rope_periods == tuple(theirs.rope.periods.tolist())
    same_logits(ours, theirs, size)
    vitlab.save_weights(ours, tmp_path / "b.safetensors", format="timm")
    same_state(tmp_path / "b.safetensors", state)
    bare = vitlab.load_weights(tmp_path / "a.pth", heads=3, image_size=size, classes=0)
    with pytest.raises(WeightsError, match="cannot express rope_periods"):
        vitlab.save_weights(bare, tmp_path / "c.safetensors", format="huggingface-dino")


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("vit_small_patch16_rope_224", "vit_\\*_rope_224: position='rope'"),
        ("vit_small_patch16_dinov3", "rope_form='dinov3', pool='mean'"),
        ("vit_medium_patch16_rope_reg1_gap_256", "rope_form='eva', rope_theta=1e4"),
    ],
)
def test_a_missing_table_is_explained(name: str, likely: str, tmp_path: Path) -> None:
    theirs: nn.Module = timm.create_model(name, depth=1, embed_dim=48, num_heads=3, num_classes=3)
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=likely):
        vitlab.load_weights(tmp_path / "a.pth", heads=3)
