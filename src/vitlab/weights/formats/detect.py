"""Recognise formats by their tensors' names; unsupported relatives of the ViT are named."""

import re
from collections.abc import Collection, Mapping

from vitlab.errors import UnknownName, WeightsError
from vitlab.weights.formats import google, huggingface, native, timm, torchvision, vit_pytorch
from vitlab.weights.formats.rules import Layout

LAYOUTS: Mapping[str, Layout] = {
    module.LAYOUT.name: module.LAYOUT
    for module in (google, timm, huggingface, torchvision, vit_pytorch, native)
}

REFUSED = {
    r"dist_token$|head_dist\.|.*distillation_token": (
        "a distilled DeiT (two tokens, two heads)",
        "its plain sibling without distillation loads",
    ),
    r"blocks\.\d+\.mlp\.(w12|w1|w2|w3|fc1_g|fc1_x)\.": (
        "a ViT with SwiGLU (DINOv2 giant, EVA-02)",
        "DINOv2 S, B and L load",
    ),
    r"norm_pre\.|.*visual\.ln_pre|.*pre_layrnorm\.|vision_model\.": (
        "a CLIP or SigLIP tower (norm_pre, text)",
        "no format of vitlab has that LayerNorm",
    ),
    r"layers\.\d+\.blocks\.\d+\.|.*relative_position_bias_table$|.*attn\.(q_bias|rel_pos_h)$": (
        "a windowed or relative-position transformer (Swin, BEiT, SAM)",
        "only plain ViTs load",
    ),
    r"conv_proj\.conv_": (
        "a torchvision ViT with a convolutional stem",
        "conv_proj as one patch projection loads",
    ),
    r"Transformer/encoderblock/": (
        "a big_vision checkpoint with scanned (stacked) blocks",
        "unstack it with big_vision's scan_to_pyloop",
    ),
    r"MixerBlock_\d+/|.*mlp_tokens\.": ("an MLP-Mixer", "only Vision Transformers load"),
    r"mlp_head\.[01]\.|to_patch_embedding\.1\.weight_|patch_to_embedding\.|"
    r"transformer\.layers\.\d+\.[01]\.fn\.": (
        "a vit-pytorch model of an early release",
        "releases since 1.2 load",
    ),
    r"(dinov2|deit|swin|beit|clip)\.|encoder\.layer\.\d+\.layer_scale1": (
        "another transformer of Hugging Face's",
        "ViTModel and ViTForImageClassification load",
    ),
}


def layout_named(name: str) -> Layout:
    """Format of that name."""
    if name not in LAYOUTS:
        raise UnknownName("format", name, LAYOUTS)
    return LAYOUTS[name]


def recognise(names: Collection[str], format: str | None) -> Layout:
    """Format that these names belong to; a requested one must be among the matches."""
    for pattern, (what, instead) in REFUSED.items():
        found = next((name for name in names if re.match(pattern, name)), None)
        if found is not None:
            raise WeightsError(f"{what}, by tensor {found!r}: not supported; {instead}")
    matches = [layout for layout in LAYOUTS.values() if layout.recognise(names)]
    if format is not None:
        return _asked_for(layout_named(format), matches, names)
    if not matches:
        raise WeightsError(
            f"{len(names)} tensors ({_some(names)}) of no known format; valid: {', '.join(LAYOUTS)}"
        )
    return matches[0]


def _asked_for(layout: Layout, matches: list[Layout], names: Collection[str]) -> Layout:
    if layout not in matches:
        found = ", ".join(match.name for match in matches) or "no known format"
        raise WeightsError(
            f"not of format {layout.name!r}: its tensors ({_some(names)}) are of {found}"
        )
    return layout


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
