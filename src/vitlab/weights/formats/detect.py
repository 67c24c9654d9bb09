"""Recognise formats by their tensors' names; unsupported relatives of the ViT are named."""

import re
from collections.abc import Collection, Mapping

from vitlab.errors import UnknownName, WeightsError
from vitlab.weights.formats import (
    google,
    huggingface,
    huggingface_clip,
    huggingface_dino,
    native,
    open_clip,
    open_clip_trunk,
    timm,
    torchvision,
    vit_pytorch,
)
from vitlab.weights.formats.rules import Layout

LAYOUTS: Mapping[str, Layout] = {
    module.LAYOUT.name: module.LAYOUT
    for module in (
        google,
        timm,
        huggingface_dino,  # whose blocks look like those of a ViT
        huggingface,
        huggingface_clip,
        open_clip,
        open_clip_trunk,
        torchvision,
        vit_pytorch,
        native,
    )
}

REFUSED = {
    r"visual\.(attnpool|layer\d)\.": ("a CLIP with a ResNet", "its Vision Transformers load"),
    r"visual\.attn_pool\.(query$|ln_[qk]\.)": (
        "a CoCa image tower",
        "CLIP towers without attention pooling load",
    ),
    r"layers\.\d+\.blocks\.\d+\.|(swin\w*\.)?encoder\.layers\.\d+\.blocks\.\d+\.": (
        "a Swin Transformer",
        "plain ViTs load: their blocks have all patches in one window",
    ),
    r".*attn\.rel_pos_h$": (
        "an image encoder of SAM, or a MViT",
        "plain ViTs load: their relative positions are one table, not one for each axis",
    ),
    r".*rel_pos\.mlp\.": (
        "a ViT whose relative positions are an MLP (timm's vit_relpos, vit_srelpos)",
        "relative positions in tables (BEiT) load",
    ),
    r"blocks\.\d+\.(attns|ffns)\.": (
        "a ViT with parallel branches (timm's 18x2)",
        "blocks of one attention and one MLP (timm's 36x1) load",
    ),
    r"blocks\.\d+\.in_proj\.": (
        "a ViT whose attention and MLP run side by side (timm's pwee, xp)",
        "blocks of an attention and then an MLP load",
    ),
    r"blocks\.\d+\.attn\.lambda_": (
        "a ViT with differential attention (timm's dlittle, dwee)",
        "one softmax for each head is what loads",
    ),
    r"blocks\.\d+\.attn\.(proj_l|proj_w|temperature|gating_param|kv)\b": (
        "a relative of the ViT with attention of its own (CaiT, XCiT, ConViT, PVT)",
        "plain ViTs load",
    ),
    r"embeds\.proj\.": (
        "a ViT for images of any size (timm's naflexvit)",
        "those of a fixed size load",
    ),
    r"patch_embed\.backbone\.(\d+\.|conv1\.|stem\.(norm1|conv1)\.)": (
        "a hybrid whose convolutions are no BiT-style ResNet (timm's resnet26d, mci, vitamin)",
        "hybrids with the ResNet of the paper load",
    ),
    r"blocks\.\d+\.proj\.": ("a Hiera", "plain ViTs load: their blocks have one width"),
    r"(stages|stem)\.|layer[1-4]\.\d+\.|blocks\.\d+\.\d+\.": (
        "a network of convolutions or of stages (ResNet, ConvNeXt, PVT, MaxViT, ...)",
        "plain ViTs load: one grid of patches for all blocks",
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
        "a vit-pytorch model of another kind or of an early release",
        "its plain ViT loads, since release 1.2",
    ),
    r".*\.(SCB|absmax|quant_map|nested_absmax|qweight|qzeros|weight_scale|quant_state\..*)$": (
        "a quantised checkpoint",
        "the unquantised weights of the same model load",
    ),
    r"swin(v2)?\.": ("a Swin Transformer of Hugging Face's", "plain ViTs load"),
    r"(yolos|dpt|pvt|levit|vivit|cvt|segformer|mobilevit|hiera|mobilevitv2)\.": (
        "another transformer of Hugging Face's",
        "ViT, DeiT, BEiT, DINOv2 and others in docs/weights.md load",
    ),
}


def layout_named(name: str) -> Layout:
    """Format of that name."""
    if name not in LAYOUTS:
        raise UnknownName("format", name, LAYOUTS)
    return LAYOUTS[name]


def recognise(names: Collection[str], format: str | None) -> Layout:
    """Format that these names belong to; a requested one must be among the matches."""
    ours = LAYOUTS["vitlab"].recognise(names)  # its stem has the name of others' convolutions
    if ours and format is None:
        return LAYOUTS["vitlab"]
    for pattern, (what, instead) in ({} if ours else REFUSED).items():
        found = next((name for name in names if re.match(pattern, _tower(name))), None)
        if found is not None:
            raise WeightsError(f"{what}, by tensor {found!r}: not supported; {instead}")
    _check_images(names)
    matches = [layout for layout in LAYOUTS.values() if layout.recognise(names)]
    if format is not None:
        return _requested(layout_named(format), matches, names)
    if not matches:
        raise WeightsError(
            f"{len(names)} tensors ({_some(names)}) of no known format; valid: {', '.join(LAYOUTS)}"
        )
    return matches[0]


def _tower(name: str) -> str:
    """Name of a tensor in timm's tower of an OpenCLIP model."""
    return name.removeprefix(open_clip_trunk.PREFIX)


def _check_images(names: Collection[str]) -> None:
    """Raise for a file with a text tower and nothing that reads images."""
    text = next((n for n in names if re.search(r"(^|\.)token_embedding\.weight$", n)), None)
    if text and not any(re.search(r"patch_embed|conv1\.weight$", name) for name in names):
        raise WeightsError(
            f"a text tower alone, by tensor {text!r}: not supported; valid: weights with an image "
            f"tower"
        )


def _requested(layout: Layout, matches: list[Layout], names: Collection[str]) -> Layout:
    if layout not in matches:
        found = ", ".join(match.name for match in matches) or "no known format"
        raise WeightsError(
            f"not of format {layout.name!r}: its tensors ({_some(names)}) are of {found}"
        )
    return layout


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
