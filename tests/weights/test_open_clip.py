"""OpenCLIP with its config and with towers of timm's, and Meta's Perception Encoders."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitlab
from reference.foreign import same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import pair

declare()
open_clip = pytest.importorskip("open_clip")
timm = pytest.importorskip("timm")

TEXT: dict[str, Any] = {"context_length": 8, "vocab_size": 20, "width": 16} | {
    "heads": 2,
    "layers": 1,
}
SIZES: tuple[dict[str, Any], ...] = (
    {"image_size": (42, 56), "layers": 3, "width": 48, "head_width": 16, "patch_size": 14},
    {"image_size": 24, "layers": 1, "width": 60, "head_width": 12, "patch_size": 6}
    | {"mlp_ratio": 2.0},
    {"image_size": 32, "layers": 5, "width": 40, "head_width": 8, "patch_size": 8}
    | {"ls_init_value": 0.1},
)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "OpenCLIP, DFN": ({}, {}),
    "OpenAI, MetaCLIP": ({}, {"quick_gelu": True}),
    "mean": ({"pool_type": "avg"}, {}),
    "CLIPA": ({"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}, {}),
    "tanh, epsilon": (
        {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-3}},
        {},
    ),
}
PREPARED = {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]}


def folder_of(theirs: nn.Module, config: dict[str, Any], folder: Path, **prepared: Any) -> Path:
    """Folder as OpenCLIP pushes it to the hub."""
    randomise(theirs.eval())
    folder.mkdir(exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    content = {"model_cfg": config, "preprocess_cfg": PREPARED | prepared}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    return folder


def same_tower_back(ours: vitlab.VisionTransformer, theirs: nn.Module, path: Path) -> None:
    """Saved, every tensor of the image tower is theirs bit for bit, and no other is there."""
    assert ours.source is not None
    vitlab.save_weights(ours, path, format=ours.source.format)
    back = load_file(path)
    expected = {name: t for name, t in theirs.state_dict().items() if name.startswith("visual.")}
    assert set(back) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(back[name], tensor), name


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size['layers']} blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_folder(kind: str, size: dict[str, Any], tmp_path: Path) -> None:
    changes, whole = KINDS[kind]
    custom = kind == "CLIPA"  # the text tower is under `text.`
    tower = size | changes
    build = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    theirs = build(embed_dim=11, vision_cfg=dict(tower), text_cfg=dict(TEXT), **whole)
    config = {"embed_dim": 11, "vision_cfg": tower, "text_cfg": TEXT, **whole}
    folder = folder_of(theirs, config, tmp_path / "folder", resize_mode="squash")
    ours = vitlab.load_weights(folder)
    assert ours.source is not None
    assert ours.source.assumed == ()
    assert ours.source.preprocessing == Preprocessing(
        size=pair(size["image_size"]),
        crop=1.0,
        interpolation="bicubic",
        mean=(0.5, 0.4, 0.3),
        std=(0.5, 0.6, 0.7),
        keep_aspect=False,
    )
    same_logits(ours, theirs.encode_image, pair(size["image_size"]))
    same_tower_back(ours, theirs, tmp_path / "back.safetensors")
    assert vitlab.load_weights(tmp_path / "back.safetensors").config == ours.config


SHAPE: dict[str, Any] = {"embed_dim": 64, "num_heads": 4}
EVA = {"rope": True, "rope_form": "eva", "rope_theta": 1e4, "position_grid": (16, 16)}
TRUNKS: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "SigLIP": ("vit_base_patch16_siglip_224", "map", "none", {"gelu": "erf"}),
    "SigLIP2, linear": ("vit_giantopt_patch16_siglip_256", "map", "linear", {"gelu": "tanh"}),
    "EVA-02-CLIP": ("eva02_base_patch16_clip_224", "token", None, EVA),
    "EVA-CLIP": ("eva_giant_patch14_clip_224", "token", "linear", {}),
    "PE core": ("vit_pe_core_base_patch16_224", "map", None, {"position_grid": (14, 14)}),
}


@pytest.mark.parametrize(
    ("depth", "image_size", "channels"), [(1, (24, 40), 3), (3, 32, 2), (5, (40, 16), 3)]
)
@pytest.mark.parametrize("family", TRUNKS)
def test_towers_of_timm(
    family: str, depth: int, image_size: Any, channels: int, tmp_path: Path
) -> None:
    name, pool, projection, fields = TRUNKS[family]
    size = 11 if projection != "none" else 64
    theirs = nn.Module()
    theirs.visual = nn.Module()
    theirs.visual.trunk = timm.create_model(
        name,
        **SHAPE,
        img_size=image_size,
        patch_size=8,
        depth=depth,
        in_chans=channels,
        num_classes=size if projection is None else 0,
        global_pool=pool,
    )
    head = nn.Sequential()
    if projection == "linear":
        head.add_module("proj", nn.Linear(64, size, bias=False))
    theirs.visual.head = head
    theirs.text = open_clip.model.TextTransformer(**TEXT, output_dim=size)
    randomise(theirs.eval())
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    ours = vitlab.load_weights(
        tmp_path / "a.pth", heads=4, image_size=image_size, stored_image_size=image_size, **fields
    )
    assert ours.source is not None
    assert ours.source.format == "open-clip-timm"
    assert all(name.startswith("text.") for name in ours.source.ignored)
    assert (ours.config.head == "projection") == (projection == "linear")
    same_logits(ours, lambda x: head(theirs.visual.trunk(x)), pair(image_size), channels)
    same_tower_back(ours, theirs, tmp_path / "back.safetensors")


@pytest.mark.parametrize("name", ["ViT-B-16-SigLIP", "EVA02-B-16", "PE-Core-B-16"])
def test_config_of_a_tower_of_timm(name: str, tmp_path: Path) -> None:
    """The architecture that the config names decides what tensors do not show."""
    config = open_clip.get_model_config(name)
    theirs = nn.Module()
    tower = config["vision_cfg"]
    theirs.visual = nn.Module()
    with torch.device("meta"):
        trunk = timm.create_model(tower["timm_model_name"], global_pool=tower["timm_pool"], depth=1)
    content = {"model_cfg": config, "preprocess_cfg": PREPARED}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    found = vitlab.weights.sidecar.read_sidecar(tmp_path)
    known = found.architecture
    assert (known["width"], known["heads"]) == (trunk.embed_dim, trunk.blocks[0].attn.num_heads)
    assert known.get("rope", False) == (name != "ViT-B-16-SigLIP")
    assert known["norm_eps"] == trunk.blocks[0].norm1.eps
    assert known["pool"] == {"map": "map", "token": "cls"}[tower["timm_pool"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attentional_pool": True}, "attentional_pool True is not supported"),
        ({"pool_type": "none"}, "pool_type 'none' is not supported; valid: 'tok', 'avg'"),
        ({"layers": [3, 4, 6, 3]}, "layers .*; valid: a whole number"),
        ({"strange": 3}, "vision_cfg: key 'strange' .* is not supported; valid: .*"),
        ({"width": "wide"}, "width 'wide'; valid: a whole number"),
    ],
)
def test_a_config_of_another_tower_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs = open_clip.model.CLIP(embed_dim=11, vision_cfg=dict(SIZES[1]), text_cfg=dict(TEXT))
    folder_of(theirs, {"vision_cfg": SIZES[1] | change}, tmp_path)
    with pytest.raises(WeightsError, match=f"open_clip_config.json: {message}") as raised:
        vitlab.load_weights(tmp_path)
    assert "\n" not in str(raised.value)


OWN = (
    ("patch_embed.proj", "conv1"),
    ("pos_embed", "positional_embedding"),
    ("blocks.", "transformer.resblocks."),
    ("norm_pre", "ln_pre"),
    ("gamma_1", "ls_1.gamma"),
    ("gamma_2", "ls_2.gamma"),
    (".norm1", ".ln_1"),
    (".norm2", ".ln_2"),
    ("attn.qkv.", "attn.in_proj_"),
    ("attn.proj", "attn.out_proj"),
    ("attn_pool.proj", "attn_pool.attn.out_proj"),
    ("attn_pool.norm", "attn_pool.layernorm"),
    ("attn_pool.latent", "attn_pool.probe"),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
)


def own_names(theirs: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Tensors of a Perception Encoder of timm's in Meta's own file."""
    found: dict[str, Tensor] = {}
    state = dict(theirs.state_dict())
    for kind in ("weight", "bias"):
        if f"attn_pool.q.{kind}" in state:
            both = [state.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv")]
            found[f"{prefix}attn_pool.attn.in_proj_{kind}"] = torch.cat(both)
    if "head.bias" in state:
        assert not state.pop("head.bias").any()
        found[f"{prefix}proj"] = state.pop("head.weight").T.contiguous()
    for name, tensor in state.items():
        if name == "cls_token":
            name, tensor = "class_embedding", tensor[0, 0]
        tensor = tensor[0] if name == "pos_embed" else tensor
        name = f"ln_post.{name.partition('.')[2]}" if name.startswith("norm.") else name
        for theirs_name, meta in OWN:
            name = name.replace(theirs_name, meta)
        found[prefix + name] = tensor
    return found


@pytest.mark.parametrize(
    ("depth", "image_size", "channels"), [(1, (24, 40), 3), (3, 32, 2), (5, (40, 16), 3)]
)
@pytest.mark.parametrize(
    "name", ["vit_pe_core_base_patch16_224", "vit_pe_spatial_base_patch16_512"]
)
def test_metas_own_perception_encoders(
    name: str, depth: int, image_size: Any, channels: int, tmp_path: Path
) -> None:
    core = "core" in name
    theirs = timm.create_model(
        name, **SHAPE, img_size=image_size, patch_size=8, depth=depth, in_chans=channels
    )
    if core:
        theirs.reset_classifier(11)
    randomise(theirs.eval())
    if core:
        nn.init.zeros_(theirs.head.bias)
    state = own_names(theirs, "visual." if core else "")
    convert = partial(timm.models.eva._convert_pe, prefix="visual." if core else "")
    for key, tensor in convert(state, theirs).items():  # the names are those that timm reads
        assert torch.equal(tensor, theirs.state_dict()[key]), key
    torch.save(state, tmp_path / "a.pth")
    grid = tuple(theirs.rope.ref_feat_shape)
    ours = vitlab.load_weights(
        tmp_path / "a.pth", heads=4, stored_image_size=image_size, position_grid=grid
    )
    assert ours.source is not None
    assert ours.source.format == "open-clip"
    assert ours.config.head == ("projection" if core else "linear")
    if core:
        same_logits(ours, theirs, pair(image_size), channels)
    else:
        features: Any = lambda images: ours.features(images).tokens  # noqa: E731
        same_logits(features, theirs.forward_features, pair(image_size), channels)
    vitlab.save_weights(ours, tmp_path / "back.safetensors", format="open-clip")
    back = load_file(tmp_path / "back.safetensors")
    assert set(back) == set(state)
    assert all(torch.equal(back[key], tensor) for key, tensor in state.items())


@pytest.mark.parametrize("name", ["vit_pe_core_base_patch16_224", "vit_pe_lang_large_patch14_448"])
def test_timms_config_of_a_perception_encoder(name: str, tmp_path: Path) -> None:
    """Rotary coordinates spread over the grid of the published model, whatever `img_size`."""
    size = SHAPE | {"img_size": (40, 56), "patch_size": 8, "depth": 3}
    theirs = timm.create_model(name, **size, num_classes=7).eval()
    randomise(theirs)
    timm.models._hub.save_for_hf(theirs, str(tmp_path), model_args=size)
    ours = vitlab.load_weights(tmp_path)
    same_logits(ours, theirs, (40, 56))
