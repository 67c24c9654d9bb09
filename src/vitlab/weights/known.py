"""What published files are, by name: their content cannot tell one from another."""

import re
from typing import Any

from vitlab.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocessing


def _imagenet(crop: float, interpolation: Interpolation) -> dict[str, Any]:
    statistics = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    return {"crop": crop, "interpolation": interpolation, **statistics}


PREPARATIONS: dict[str, dict[str, Any]] = {
    "google": {"interpolation": "bilinear", "mean": HALF, "std": HALF, "keep_aspect": False},
    "deit": _imagenet(224 / 256, "bicubic"),
    "deit3": _imagenet(1.0, "bicubic"),
    "torchvision": _imagenet(224 / 256, "bilinear"),
    "torchvision_l16": _imagenet(224 / 242, "bilinear"),
    "swag": _imagenet(1.0, "bicubic"),
    "dino": _imagenet(224 / 256, "bicubic"),
}
"""How each publisher evaluated: all but the size. Google squeezes the whole image to [-1, 1]."""


FILES = (
    ("google", r"(imagenet21k(\+imagenet2012)?_)?(R\d+\+)?ViT-[BLH][_-]\d+.*\.npz", "google"),
    ("google", r"(R\d*_)?(Ti|S|B|L)_\d+(-i1k|-i21k|-sam)?[^/]*\.npz", "google"),
    ("google", r"(R\d+\+)?(ViT-)?[BLH]_\d+(_.*)?\.npz", "google"),
    ("timm", r"deit_(tiny|small|base)_patch\d+_\d+.*", "deit"),
    ("timm", r"deit_?3_(small|medium|base|large|huge)_(patch\d+_)?\d+.*", "deit3"),
    ("torchvision", r"vit_l_16-[0-9a-f]+\.pth", "torchvision_l16"),
    ("torchvision", r"vit_[blh]_\d+-[0-9a-f]+\.pth", "torchvision"),
    ("torchvision", r"vit_[blh]_\d+_(lc_)?swag-[0-9a-f]+\.pth", "swag"),
    ("timm", r"dino(v2)?_.*", "dino"),
)
"""Format, name and preparation: the paper's release and AugReg, DeiT, torchvision, SWAG, DINO.

Those of them that have a head of 1,000 classes have the classes of ImageNet-1k.
"""


def known_preparation(name: str, format: str) -> str | None:
    """The preparation of a file of that name, if its content has the format it should have."""
    for its_format, pattern, preparation in FILES:
        if format == its_format and re.fullmatch(pattern, name):
            return preparation
    return None


def prepared(preparation: str, size: tuple[int, int]) -> Preprocessing:
    """How the publisher prepared images, for images of `size`."""
    return Preprocessing(size=size, **PREPARATIONS[preparation])
