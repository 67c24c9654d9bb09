"""CLIP and SigLIP image towers of transformers, OpenCLIP and timm through our class."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.foreign import converted, same_back, same_logits
from reference.open_clip_tower import OpenClipTower
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError

declare()
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

# Transformers' towers take square images alone; every other axis has its own size.
SIZES: dict[str, dict[str, Any]] = {
    "three heads": {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    | {"num_hidden_layers": 3, "image_size": 42, "patch_size": 14},
    "one block": {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 28}
    | {"num_hidden_layers": 1, "image_size": 20, "patch_size": 4, "num_channels": 5},
    "erf": {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 96}
    | {"num_hidden_layers": 5, "image_size": 12, "patch_size": 6, "hidden_act": "gelu"}
    | {"layer_norm_eps": 1e-3},
}
TEXT: dict[str, Any] = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12} | {
    "num_hidden_layers": 1,
    "vocab_size": 20,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def known(size: dict[str, Any], default: str) -> dict[str, Any]:
    """The fields that no tensor shows."""
    act = size.get("hidden_act", default)
    gelu = {"quick_gelu": "quick", "gelu": "erf", "gelu_pytorch_tanh": "tanh"}[act]
    found = {"heads": size["num_attention_heads"], "gelu": gelu}
    return found | ({"norm_eps": size["layer_norm_eps"]} if "layer_norm_eps" in size else {})


def pooled(theirs: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: theirs(pixel_values=images).pooler_output


def side(size: dict[str, Any]) -> tuple[int, int]:
    return size["image_size"], size["image_size"]


@pytest.mark.parametrize("case", SIZES)
def test_clip_vision_model(case: str, tmp_path: Path) -> None:
    size = SIZES[case]
    theirs = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**size)).eval()
    ours = converted(theirs, tmp_path, format="huggingface-clip", **known(size, "quick_gelu"))
    same_logits(ours, pooled(theirs), side(size), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="huggingface-clip")


@pytest.mark.parametrize("case", SIZES)
def test_clip_with_projection(case: str, tmp_path: Path) -> None:
    size = SIZES[case]
    config = transformers.CLIPVisionConfig(**size, projection_dim=11)
    theirs = transformers.CLIPVisionModelWithProjection(config).eval()
    ours = converted(theirs, tmp_path, format="huggingface-clip", **known(size, "quick_gelu"))
    assert ours.config.head == "projection"
    same_logits(
        ours, lambda x: theirs(pixel_values=x).image_embeds, side(size), ours.config.channels
    )
    same_back(ours, theirs, tmp_path, format="huggingface-clip")


@pytest.mark.parametrize("case", SIZES)
def test_siglip_vision_model(case: str, tmp_path: Path) -> None:
    size = SIZES[case]
    theirs = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**size)).eval()
    fields = known(size, "gelu_pytorch_tanh")
    ours = converted(theirs, tmp_path, format="huggingface-clip", **fields)
    assert ours.config.pool == "map"
    same_logits(ours, pooled(theirs), side(size), ours.config.channels)
    same_back(ours, theirs, tmp_path, format="huggingface-clip")


def saved(theirs: nn.Module, folder: Path) -> Path:
    randomise(theirs)
    theirs.eval()
    theirs.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_folder_of_both_towers(family: str, case: str, tmp_path: Path) -> None:
    size = SIZES[case]
    config = getattr(transformers, f"{family}Config")(vision_config=size, text_config=TEXT)
    theirs = getattr(transformers, f"{family}Model")(config)
    ours = vitlab.load_weights(saved(theirs, tmp_path))
    assert ours.source.assumed == ()
    assert any(name.startswith("text_model.") for name in ours.source.ignored)
    same_logits(
        ours,
        lambda x: theirs.get_image_features(pixel_values=x).pooler_output,
        side(size),
        ours.config.channels,
    )


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_folder_of_a_classifier(family: str, case: str, tmp_path: Path) -> None:
    size = SIZES[case]
    config = getattr(transformers, f"{family}Config")(
        vision_config=size, text_config=TEXT, num_labels=7
    )
    theirs = getattr(transformers, f"{family}ForImageClassification")(config)
    ours = vitlab.load_weights(saved(theirs, tmp_path))
    assert ours.config.classes == 7
    assert ours.source.assumed == ()
    same_logits(ours, lambda x: theirs(pixel_values=x).logits, side(size), ours.config.channels)
    with pytest.raises(WeightsError, match="does not write classes=7"):
        vitlab.save_weights(ours, tmp_path / "back.safetensors", format="huggingface-clip")


@pytest.mark.parametrize(
    ("image_size", "patch_size", "layers", "quick", "scaled"),
    [((28, 42), 14, 3, False, False), ((30, 24), (5, 6), 1, True, False), (12, 4, 5, False, True)],
)
@pytest.mark.parametrize("prefix", ["", "visual."])
def test_open_clip(
    image_size: Any,
    patch_size: Any,
    layers: int,
    quick: bool,
    scaled: bool,
    prefix: str,
    tmp_path: Path,
) -> None:
    tower = OpenClipTower(image_size, patch_size, layers=layers, quick=quick, scaled=scaled).eval()
    whole = nn.Module()
    whole.visual = tower
    theirs = whole if prefix else tower
    fields = {"heads": 3, "image_size": image_size, "gelu": "quick" if quick else "erf"}
    ours = converted(theirs, tmp_path, format="open-clip", **fields)
    same_logits(ours, tower, vitlab.models.config.pair(image_size))
    same_back(ours, theirs, tmp_path, format="open-clip")


def test_openais_own_file_has_the_quick_gelu_and_a_text_tower(tmp_path: Path) -> None:
    tower = OpenClipTower(28, 14, layers=2, quick=True).eval()
    randomise(tower)
    tower.proj.data *= 0.2  # embeddings of the size of others
    state = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    state |= {"input_resolution": torch.tensor(28), "vocab_size": torch.tensor(5)}
    state |= {"transformer.resblocks.0.ln_1.weight": torch.ones(8), "logit_scale": torch.ones(())}
    torch.save(state, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=3)
    assert ours.config.gelu == "quick"
    assert ours.source.ignored == tuple(n for n in state if not n.startswith("visual."))
    same_logits(ours, tower, (28, 28))


SMALL: dict[str, Any] = {"embed_dim": 48, "num_heads": 3, "num_classes": 7}
TIMM: dict[str, dict[str, Any]] = {
    "quick": {"img_size": (40, 56), "patch_size": 8, "depth": 3},
    "projected": {"img_size": (30, 24), "patch_size": (5, 6), "depth": 1, "num_classes": 11},
    "no head": {"img_size": 32, "patch_size": 8, "depth": 5, "num_classes": 0, "in_chans": 2},
}


@pytest.mark.parametrize("case", TIMM)
def test_timm_clip(case: str, tmp_path: Path) -> None:
    arguments = SMALL | TIMM[case]
    quick = case == "quick"
    act = timm.layers.get_act_layer("quick_gelu") if quick else nn.GELU
    theirs = timm.models.VisionTransformer(
        **arguments, pre_norm=True, norm_layer=nn.LayerNorm, act_layer=act
    ).eval()
    fields = {"heads": 3, "image_size": arguments["img_size"], "gelu": "quick" if quick else "erf"}
    ours = converted(theirs, tmp_path, format="timm", **fields)
    assert ours.config.embed_norm
    assert not ours.config.patch_bias
    same_logits(
        ours, theirs, vitlab.models.config.pair(ours.config.image_size), ours.config.channels
    )
    same_back(ours, theirs, tmp_path, format="timm")


@pytest.mark.parametrize(
    ("depth", "mlp_ratio", "registers"), [(1, 4.0, 0), (3, 16 / 3, 4), (2, 2.0, 2)]
)
def test_timm_giant(depth: int, mlp_ratio: float, registers: int, tmp_path: Path) -> None:
    """DINOv2 giant: a SwiGLU of one matrix."""
    theirs = timm.models.VisionTransformer(
        **SMALL,
        img_size=(28, 42),
        patch_size=14,
        depth=depth,
        mlp_ratio=mlp_ratio,
        reg_tokens=registers,
        no_embed_class=registers == 4,
        init_values=1e-5,
        mlp_layer=timm.layers.SwiGLUPacked,
        act_layer=nn.SiLU,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    ).eval()
    ours = converted(theirs, tmp_path, format="timm", heads=3, stored_image_size=(28, 42))
    assert ours.config.mlp_activation == "swiglu"
    same_logits(ours, theirs, (28, 42))
    same_back(ours, theirs, tmp_path, format="timm")


def test_metas_names_of_the_swiglu(tmp_path: Path) -> None:
    theirs = timm.models.VisionTransformer(
        **SMALL | {"num_classes": 0},
        img_size=28,
        patch_size=14,
        depth=2,
        mlp_layer=timm.layers.SwiGLUPacked,
        act_layer=nn.SiLU,
        init_values=1.0,
    ).eval()
    randomise(theirs)
    state = {
        name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): tensor
        for name, tensor in theirs.state_dict().items()
    }
    torch.save(state, tmp_path / "a.pth")
    ours = vitlab.load_weights(tmp_path / "a.pth", heads=3)
    same_logits(ours, theirs, (28, 28))
    vitlab.save_weights(ours, tmp_path / "b.pth", format="timm")
    back = torch.load(tmp_path / "b.pth", weights_only=True)
    assert set(back) == set(state)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_a_config_of_another_tower_is_refused(tmp_path: Path) -> None:
    theirs = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SIZES["one block"]))
    saved(theirs, tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "model_type": "siglip2_vision_model"}))
    with pytest.raises(WeightsError, match="model_type 'siglip2_vision_model' is not supported"):
        vitlab.load_weights(tmp_path)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("CLIPText", "a text tower alone, by tensor '.*token_embedding.weight'"),
        ("Siglip2Vision", "SigLIP2 for images of any size"),
    ],
)
def test_relatives_are_refused_by_name(family: str, message: str, tmp_path: Path) -> None:
    size = SIZES["three heads"]
    size = TEXT if family == "CLIPText" else size
    if family == "Siglip2Vision":
        size = {name: value for name, value in size.items() if name != "image_size"}
    config = getattr(transformers, f"{family}Config")(**size)
    torch.save(getattr(transformers, f"{family}Model")(config).state_dict(), tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=message):
        vitlab.load_weights(tmp_path / "a.pth")
