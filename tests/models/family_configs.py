"""A tiny network of every family whose published weights load, each with its own parts."""

from typing import Any

from vitlab.models.config import ViTConfig

BASE: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "mlp_width": 40} | {
    "patch_size": (8, 4),
    "image_size": 32,
    "classes": 10,
}
CLIP: dict[str, Any] = {"embed_norm": True, "patch_bias": False, "norm_eps": 1e-5}
DINO: dict[str, Any] = {"layer_scale": 0.1, "registers": 4}
DINOV3: dict[str, Any] = {**DINO, "position": "rope", "rope_form": "dinov3", "key_bias": False}
EVA: dict[str, Any] = {"rope": True, "rope_form": "eva", "rope_theta": 1e4, "key_bias": False} | {
    "position_grid": (16, 16),
    "mlp_activation": "swiglu",
    "mlp_norm": True,
}
BEIT: dict[str, Any] = {"position": "none", "key_bias": False, "layer_scale": 0.1}
MEAN: dict[str, Any] = {"pool": "mean", "norm_at": "pooled"}
FAMILIES: dict[str, dict[str, Any]] = {
    "CLIP": {**CLIP, "gelu": "quick", "head": "projection", "representation_size": 24},
    "CLIPA": {"patch_bias": False, **MEAN, "head": "projection"},
    "SigLIP": {"class_token": False, "pool": "map", "gelu": "tanh"},
    "DINOv2 classifier": {**DINO, "pool": "cls_mean"},
    "DINOv2 giant": {**DINO, "mlp_activation": "swiglu"},
    "DINOv3": DINOV3,
    "DINOv3 S+": {**DINOV3, "mlp_activation": "swiglu", "pool": "mean"},
    "DeiT, distilled": {"registers": 1, "position_prefix": "all", "pool": "cls_dist"},
    "DeiT-III": {"layer_scale": 0.1, "position_prefix": "none"},
    "BEiT": {**BEIT, **MEAN, "relative_table": "blocks"},
    "BEiT, shared": {**BEIT, "relative_table": "shared"},
    "EVA-02": {**EVA, **MEAN},
    "EVA-02-CLIP": {**EVA, "attention_norm": True},
    "PE core": {**CLIP, "rope": True, "rope_form": "pe", "pool": "map", "pool_heads": 8},
    "PE spatial": {**CLIP, "rope": True, "rope_form": "pe", "norm_at": "none", "pool": "mean"},
    "I-JEPA": {"class_token": False, "pool": "mean"},
    "AIMv2": {"class_token": False, "norm_kind": "rms", "mlp_activation": "swiglu", "pool": "mean"}
    | {"qkv_bias": False, "proj_bias": False, "mlp_bias": False, "patch_norm": "after"},
    "SBB": {"registers": 2, "class_token": False, "pool": "map_patches", "layer_scale": 0.1},
    "RoPE": {"position": "rope", "layer_scale": 0.1},
    "RoPE and a table": {"rope": True, "layer_scale": 0.1, "position_prefix": "none"},
    "RoPE-Mixed": {"position": "rope", "rope_form": "mixed", "rope_theta": 10.0},
    "RPN": {"norm": "res_post", "class_token": False, "pool": "mean"},
    "SimpleViT": {"position": "sincos2d", "class_token": False, "pool": "mean"}
    | {"patch_norm": "both", "qkv_bias": False, "proj_bias": False},
}


def config_of(family: str) -> ViTConfig:
    """Config of the tiny network."""
    return ViTConfig(**{**BASE, **FAMILIES[family]})
