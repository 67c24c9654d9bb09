"""Preprocessing of published files, by name: their content cannot tell one from another."""

import re

from vitlab.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocessing

GOOGLE = (
    r"(imagenet21k\+imagenet2012_|imagenet21k_)?(R\d+\+)?ViT-[BLH][_-]\d+.*\.npz",
    r"(R\d*_)?(Ti|S|B|L)_\d+(-i1k|-i21k|-sam)?[^/]*\.npz",
    r"(R\d+\+)?(ViT-)?[BLH]_\d+(_.*)?\.npz",
)
"""The paper's release and AugReg: [-1, 1], the whole image squeezed to size."""
DEIT = r"deit(_?3)?_(tiny|small|medium|base|large|huge)_(patch)?\d+_.*"
TORCHVISION = r"vit_[blh]_\d+-[0-9a-f]+\.pth"
SWAG = r"vit_[blh]_\d+_(lc_)?swag-[0-9a-f]+\.pth"
DINO = r"dino(v2)?_.*"


def known_preprocessing(name: str, format: str, size: tuple[int, int]) -> Preprocessing | None:
    """What the publisher of a file of that name used, for images of `size`."""
    if format == "google" and any(re.fullmatch(pattern, name) for pattern in GOOGLE):
        return Preprocessing(
            size=size, interpolation="bilinear", mean=HALF, std=HALF, keep_aspect=False
        )
    if format == "timm" and re.fullmatch(DEIT, name):
        # From 384 on, the whole image was used.
        return _imagenet(size, 224 / 256 if min(size) < 384 else 1.0, "bicubic")
    if format == "torchvision" and re.fullmatch(SWAG, name):
        return _imagenet(size, 1.0, "bicubic")
    if format == "torchvision" and re.fullmatch(TORCHVISION, name):
        return _imagenet(size, _torchvision_crop(name, size), "bilinear")
    if format == "timm" and re.fullmatch(DINO, name):
        return _imagenet(size, 224 / 256, "bicubic")
    return None


def _torchvision_crop(name: str, size: tuple[int, int]) -> float:
    """224 of 256, except for L/16, which was evaluated from 242."""
    return size[0] / 242 if name.startswith("vit_l_16-") and size[0] == 224 else 224 / 256


def _imagenet(size: tuple[int, int], crop: float, interpolation: Interpolation) -> Preprocessing:
    return Preprocessing(
        size=size, crop=crop, interpolation=interpolation, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
