"""The same network in other libraries, opened as their documentation does, for comparisons."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vitlab.errors import InputError, UnknownName
from vitlab.models.config import ViTConfig, pair

POOLS = {"cls": "token", "mean": "avg", "map": "map"}
"""Ours, and timm's word for it."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library with Vision Transformers of its own."""

    package: str
    format: str
    """What its weights are called in `vitlab.save_weights`."""
    file: str
    open: Callable[[ViTConfig, Path], Any]
    """The network of a config, from a file of weights."""
    twin: dict[str, Any] = field(default_factory=dict)
    """What its networks have otherwise than the paper's."""


def open_timm(config: ViTConfig, file: Path) -> Any:
    """timm's."""
    import_torchvision()
    import timm
    from torch import nn

    return timm.create_model(
        "vit_tiny_patch16_224",
        checkpoint_path=str(file),
        img_size=pair(config.image_size),
        patch_size=pair(config.patch_size),
        in_chans=config.channels,
        num_classes=config.classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_width / config.width,
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        init_values=config.layer_scale,
        class_token=config.class_token,
        reg_tokens=config.registers,
        no_embed_class=config.position_prefix == "none",
        global_pool=POOLS[config.pool],
        fc_norm=config.norm_at == "pooled",
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
    ).eval()


def open_transformers(config: ViTConfig, file: Path) -> Any:
    """Hugging Face's, with the attention that it chooses itself."""
    import_torchvision()
    from transformers import ViTForImageClassification

    return ViTForImageClassification.from_pretrained(str(file)).eval()


def open_vit_pytorch(config: ViTConfig, file: Path) -> Any:
    """lucidrains's, with heads of the paper's width."""
    import_torchvision()
    import torch
    from vit_pytorch import ViT

    network = ViT(
        image_size=pair(config.image_size),
        patch_size=pair(config.patch_size),
        num_classes=config.classes,
        channels=config.channels,
        dim=config.width,
        depth=config.depth,
        heads=config.heads,
        dim_head=config.key_width,
        mlp_dim=config.mlp_width,
        pool=config.pool,
    )
    network.load_state_dict(torch.load(file, weights_only=True))
    return network.eval()


def import_torchvision() -> None:
    """Import what all of them import, also where it was built for another torch."""

    declare()


PEERS = {
    "timm": Peer(package="timm", format="timm", file="timm.safetensors", open=open_timm),
    "transformers": Peer(
        package="transformers", format="huggingface", file="transformers", open=open_transformers
    ),
    "vit-pytorch": Peer(
        package="vit_pytorch",
        format="vit-pytorch",
        file="vit-pytorch.pt",
        open=open_vit_pytorch,
        twin={"patch_norm": "both", "qkv_bias": False, "norm_eps": 1e-5},
    ),
}


def check_peer(name: str) -> Peer:
    """The library of a name; an error where it is unknown or not installed."""
    if name not in PEERS:
        raise UnknownName("library", name, PEERS)
    peer = PEERS[name]
    if find_spec(peer.package) is None:
        raise InputError(f"{name} is not installed; valid: pip install {name}, or without it")
    return peer


# Lets torchvision and timm import where torchvision's compiled operators do not fit this torch.

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []
"""A library's operators disappear with it: kept for as long as the process lives."""


def declare() -> None:
    """Import torchvision, its detection operators (which nothing here calls) stubs if need be."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + SCHEMA)
        _libraries.append(library)
        importlib.import_module("torchvision")
