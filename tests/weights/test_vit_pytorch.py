"""vit-pytorch: the installed release, and the one that averages the class token too."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from reference.foreign import converted, same_back, same_logits
from reference.random_weights import randomise
from reference.seed002 import SeedViT
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError

declare()
vit_pytorch = pytest.importorskip("vit_pytorch")

SHAPE: dict[str, Any] = {"image_size": (24, 40), "patch_size": (8, 8), "depth": 2}

CURRENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "class token": ({"dim": 48, "heads": 3, "dim_head": 16}, {"heads": 3}),
    "mean": ({"dim": 48, "heads": 3, "dim_head": 16, "pool": "mean"}, {"heads": 3}),
    "heads x head width is not width": ({"dim": 40, "heads": 3, "dim_head": 64}, {}),
    "one head without projection": ({"dim": 32, "heads": 1, "dim_head": 32}, {}),
    "one channel, flat patches": (
        {"dim": 40, "heads": 2, "dim_head": 12, "channels": 1, "patch_size": (4, 8)},
        {"heads": 2, "patch_size": (4, 8)},
    ),
}


@pytest.mark.parametrize("case", CURRENT)
def test_installed_release(case: str, tmp_path: Path) -> None:
    arguments, open_fields = CURRENT[case]
    arguments = {**SHAPE, "num_classes": 7, "mlp_dim": 56, **arguments}
    theirs = vit_pytorch.ViT(**arguments).eval()
    if theirs.pos_embedding.ndim == 3:
        pytest.skip("an older release is installed")
    ours = converted(theirs, tmp_path, format="vit-pytorch", image_size=(24, 40), **open_fields)
    same_logits(ours, theirs, (24, 40), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="vit-pytorch")


SEED: dict[str, dict[str, Any]] = {
    "class token": {"width": 48, "heads": 3, "head_width": 16},
    "mean of all tokens": {"width": 48, "heads": 3, "head_width": 16, "pool": "mean"},
    "wide heads": {"width": 40, "heads": 2, "head_width": 64, "pool": "mean"},
    "no projection": {"width": 32, "heads": 1, "head_width": 32},
    "one channel": {"width": 40, "heads": 2, "head_width": 20, "channels": 1},
}


@pytest.mark.parametrize("case", SEED)
def test_older_release(case: str, tmp_path: Path) -> None:
    theirs = SeedViT(**SHAPE, classes=7, mlp_width=56, **SEED[case]).eval()
    pool = "mean_all" if theirs.pool == "mean" else "cls"
    heads = SEED[case]["heads"]
    ours = converted(
        theirs, tmp_path, format="vit-pytorch", image_size=(24, 40), heads=heads, pool=pool
    )
    same_logits(ours, theirs, (24, 40), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="vit-pytorch")


def test_pooling_over_the_class_token_is_written_as_the_older_release(tmp_path: Path) -> None:
    model = vitlab.VisionTransformer(small_config(pool="mean_all"))
    vitlab.save_weights(model, tmp_path / "a.pth", format="vit-pytorch")
    state = torch.load(tmp_path / "a.pth", weights_only=True)
    assert state["cls_token"].shape == (1, 1, 32)
    assert state["pos_embedding"].shape == (1, 5, 32)


def test_head_width_decides_heads(tmp_path: Path) -> None:
    theirs = SeedViT(**SHAPE, classes=7, mlp_width=56, width=40, heads=6, head_width=32)
    randomise(theirs)
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    size = {"image_size": (24, 40)}
    assert vitlab.load_weights(tmp_path / "a.pth", head_width=32, **size).config.heads == 6
    default = vitlab.load_weights(tmp_path / "a.pth", **size)
    assert (default.config.heads, default.config.head_width) == (3, 64)
    assert "heads 3: head width 64" in default.source.assumed
    with pytest.raises(WeightsError, match="heads=5 does not divide the 192"):
        vitlab.load_weights(tmp_path / "a.pth", heads=5, **size)


def small_config(**changes: Any) -> vitlab.ViTConfig:
    fields: dict[str, Any] = {
        "width": 32,
        "depth": 1,
        "heads": 2,
        "mlp_width": 48,
        "patch_size": 8,
        "image_size": 16,
        "classes": 3,
        "patch_norm": "both",
        "qkv_bias": False,
        "norm_eps": 1e-5,
    }
    return vitlab.ViTConfig(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"qkv_bias": True}, "qkv_bias=True"),
        ({"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ({"gelu": "tanh"}, "gelu='tanh'"),
        ({"patch_norm": "none"}, "patch_norm='none'"),
        ({"pool": "mean"}, "pool='mean'"),
        ({"registers": 2}, "registers=2"),
        ({"heads": 1}, "proj=True"),
    ],
)
def test_inexpressible(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    model = vitlab.VisionTransformer(small_config(**changes))
    with pytest.raises(WeightsError, match=f"format 'vit-pytorch' cannot express {named}"):
        vitlab.save_weights(model, tmp_path / "a.pth", format="vit-pytorch")


SIMPLE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "three blocks": ("simple_vit", {"depth": 3, "dim": 48, "heads": 3, "dim_head": 16}, {}),
    "wide heads": (
        "simple_vit",
        {"depth": 1, "dim": 40, "heads": 2, "dim_head": 64, "channels": 1, "patch_size": (4, 8)},
        {"patch_size": (4, 8)},
    ),
    "registers": (
        "simple_vit_with_register_tokens",
        {"depth": 5, "dim": 36, "heads": 3, "dim_head": 12, "num_register_tokens": 2},
        {},
    ),
}


@pytest.mark.parametrize("case", SIMPLE)
def test_simple_vit(case: str, tmp_path: Path) -> None:
    module, arguments, open_fields = SIMPLE[case]
    arguments = {**SHAPE, "num_classes": 7, "mlp_dim": 56, **arguments}
    library = importlib.import_module(f"vit_pytorch.{module}")
    theirs = library.SimpleViT(**arguments).eval()
    fields = {"heads": arguments["heads"], "image_size": (24, 40), **open_fields}
    ours = converted(theirs, tmp_path, format="vit-pytorch", **fields)
    assert (ours.config.position, ours.config.pool) == ("sincos2d", "mean")
    same_logits(ours, theirs, (24, 40), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="vit-pytorch")
