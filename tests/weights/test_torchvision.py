"""torchvision's vision_transformer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from reference.foreign import converted, same_back, same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError

declare()
vision_transformer = pytest.importorskip("torchvision.models.vision_transformer")

CASES: dict[str, dict[str, Any]] = {
    "plain": {"num_layers": 2, "hidden_dim": 48, "num_heads": 3},
    "representation": {
        "num_layers": 2,
        "hidden_dim": 48,
        "num_heads": 3,
        "representation_size": 29,
    },
    "deeper, narrower": {"num_layers": 3, "hidden_dim": 40, "num_heads": 5},
    "eps of torch": {
        "num_layers": 1,
        "hidden_dim": 32,
        "num_heads": 2,
        "norm_layer": nn.LayerNorm,
    },
}


def theirs_of(case: str) -> nn.Module:
    arguments = {"image_size": 40, "patch_size": 8, "mlp_dim": 56, "num_classes": 7, **CASES[case]}
    model: nn.Module = vision_transformer.VisionTransformer(**arguments)
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_logits_there_and_tensors_back(case: str, tmp_path: Path) -> None:
    theirs = theirs_of(case)
    open_fields = {"norm_eps": 1e-5} if "eps" in case else {}
    heads = CASES[case]["num_heads"]
    ours = converted(theirs, tmp_path, format="torchvision", heads=heads, **open_fields)
    assert ours.config.image_size == 40
    same_logits(ours, theirs, (40, 40))
    same_back(ours, theirs, tmp_path, format="torchvision")


def test_published_names_of_the_mlp(tmp_path: Path) -> None:
    theirs = theirs_of("plain")
    randomise(theirs)
    older = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
        for name, tensor in theirs.state_dict().items()
    }
    path = tmp_path / "vit_b_16-c867db91.pth"
    torch.save(older, path)
    ours = vitlab.load_weights(path, heads=3)
    same_logits(ours, theirs, (40, 40))
    assert ours.source.require_preprocessing().interpolation == "bilinear"
    vitlab.save_weights(ours, tmp_path / "b.pth", format="torchvision")
    assert set(torch.load(tmp_path / "b.pth", weights_only=True)) == set(older)


def test_convolutional_stem_is_refused_by_name(tmp_path: Path) -> None:
    state = theirs_of("plain").state_dict()
    state["conv_proj.conv_bn_relu_0.0.weight"] = torch.zeros(3)
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match="convolutional stem"):
        vitlab.load_weights(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gelu": "tanh"}, "gelu='tanh'"),
        ({"pool": "mean", "class_token": False}, "class_token=False"),
        ({"layer_scale": 0.1}, "layer_scale=0.1"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"stem": "shifted"}, "stem='shifted'"),
    ],
)
def test_inexpressible(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    base: dict[str, Any] = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 48, "patch_size": 8}
    model = vitlab.VisionTransformer(vitlab.ViTConfig(image_size=16, classes=3, **base, **changes))
    with pytest.raises(WeightsError, match=f"format 'torchvision' cannot express {named}"):
        vitlab.save_weights(model, tmp_path / "a.pth", format="torchvision")
