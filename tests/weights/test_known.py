"""Preprocessing by the name of a published file, and from timm's hub config."""

import json
from pathlib import Path

import pytest
import torch

import vitlab
from reference.foreign import without_note
from vitlab.images.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitlab.weights.resolve import known_preparation, prepared

AUGREG = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
STEPS = "steps_20k-lr_0.01-res_224"


@pytest.mark.parametrize(
    ("name", "format", "mean", "crop", "interpolation", "keep_aspect"),
    [
        ("ViT-B_16.npz", "google", HALF, 1.0, "bilinear", False),
        ("R50+ViT-B_16.npz", "google", HALF, 1.0, "bilinear", False),
        ("imagenet21k+imagenet2012_ViT-L_32.npz", "google", HALF, 1.0, "bilinear", False),
        (f"{AUGREG}.npz", "google", HALF, 1.0, "bilinear", False),
        (f"{AUGREG}--imagenet2012-{STEPS}.npz", "google", HALF, 1.0, "bilinear", False),
        (f"R_Ti_16{AUGREG[4:]}.npz", "google", HALF, 1.0, "bilinear", False),
        ("deit_tiny_patch16_224-a1311bcf.pth", "timm", IMAGENET_MEAN, 0.875, "bicubic", True),
        ("deit_base_patch16_384-8de9b5d1.pth", "timm", IMAGENET_MEAN, 0.875, "bicubic", True),
        ("deit_3_base_224_21k.pth", "timm", IMAGENET_MEAN, 1.0, "bicubic", True),
        ("vit_b_16-c867db91.pth", "torchvision", IMAGENET_MEAN, 0.875, "bilinear", True),
        ("vit_l_16-852ce7e3.pth", "torchvision", IMAGENET_MEAN, 224 / 242, "bilinear", True),
        ("vit_h_14_lc_swag-c1eb923e.pth", "torchvision", IMAGENET_MEAN, 1.0, "bicubic", True),
        ("dinov2_vitb14_reg4_pretrain.pth", "timm", IMAGENET_MEAN, 0.875, "bicubic", True),
    ],
)
def test_published_files(
    name: str,
    format: str,
    mean: tuple[float, ...],
    crop: float,
    interpolation: str,
    keep_aspect: bool,
) -> None:
    preparation = known_preparation(name, format)
    assert preparation is not None
    found = prepared(preparation, (224, 224))
    assert found.size == (224, 224)
    assert (found.mean, found.crop, found.interpolation) == (mean, crop, interpolation)
    assert found.keep_aspect == keep_aspect


@pytest.mark.parametrize("name", ["model.safetensors", "mine.npz", "my_B_16.npz", "vit.pth"])
def test_other_names_say_nothing(name: str) -> None:
    assert known_preparation(name, "google") is None


@pytest.mark.parametrize("format", ["timm", "vitlab"])
def test_a_published_name_on_another_format_says_nothing(format: str) -> None:
    assert known_preparation(f"{AUGREG}.npz", format) is None


def test_timms_hub_config(tmp_path: Path) -> None:
    config = vitlab.ViTConfig(
        width=48, depth=1, heads=3, mlp_width=56, patch_size=8, image_size=(24, 40), classes=2
    )
    model = vitlab.VisionTransformer(config)
    torch.manual_seed(0)
    vitlab.save_weights(model, tmp_path / "pytorch_model.bin", format="timm")
    without_note(tmp_path / "pytorch_model.bin")
    hub = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 2,
        "num_features": 48,
        "global_pool": "avg",
        "model_args": {"num_heads": 3},
        "pretrained_cfg": {
            "input_size": [3, 24, 40],
            "mean": IMAGENET_MEAN,
            "std": IMAGENET_STD,
            "crop_pct": 0.9,
            "interpolation": "bilinear",
            "label_names": ["cat", "dog"],
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(hub))
    loaded = vitlab.load_weights(tmp_path)
    assert (loaded.config.heads, loaded.config.pool) == (3, "mean")
    assert loaded.config.image_size == (24, 40)
    assert loaded.source.labels == ("cat", "dog")
    assert loaded.source.preprocessing == Preprocessing(
        size=(24, 40), crop=0.9, interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
