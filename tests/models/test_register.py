"""Parts of a user's own: stem, position and attention under a new name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.random_weights import randomise
from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError, UnknownName
from vitlab.models.config import ViTConfig
from vitlab.models.parts import self_attention
from vitlab.models.vit import VisionTransformer
from vitlab.nn.pattern import Sliding
from vitlab.registry import ATTENTIONS, POSITIONS, STEMS, VARIANTS, register

Grid = tuple[int, int]
SIZES: dict[str, Any] = {
    "width": 12,
    "depth": 2,
    "heads": 3,
    "mlp_width": 17,
    "patch_size": 4,
    "image_size": (8, 20),
}


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are gone after it."""
    for registry in (STEMS, POSITIONS, ATTENTIONS, VARIANTS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


class MeanColour(nn.Module):
    """A stem that knows only the mean of each patch."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        assert isinstance(config.patch_size, int)
        self.pool = nn.AvgPool2d(config.patch_size)
        self.proj = nn.Linear(config.channels, config.width)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.pool(images).movedim(1, -1))


class NoProjection(nn.Module):
    """Attention that ends without a linear layer."""

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return x.flip(1)


def test_zero_init_residual_needs_a_projection_to_zero() -> None:
    register("attention", "flip", lambda config, layer: NoProjection())
    config = ViTConfig(**SIZES, attention="flip", zero_init_residual=True)
    with pytest.raises(ConfigError, match="linear layer `proj`; NoProjection has none"):
        VisionTransformer(config)


class RowTable(nn.Module):
    """A position that knows only the row, and nothing of the prefix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(config.grid[0], config.width))

    def forward(self, grid: Grid) -> Tensor:
        return self.rows.repeat_interleave(grid[1], dim=0)


class Average(nn.Module):
    """Attention that looks at everything alike."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return self.proj(x.mean(1, keepdim=True).expand_as(x))

    def weights(self, x: Tensor, grid: Grid) -> Tensor:
        batch, tokens, _ = x.shape
        return torch.full((batch, self.heads, tokens, tokens), 1 / tokens)


def images() -> Tensor:
    return torch.randn(2, 3, 8, 20)


def build(**changes: Any) -> VisionTransformer:
    model = VisionTransformer(ViTConfig(**SIZES, **changes)).eval()
    randomise(model)
    return model


def test_a_stem() -> None:
    register("stem", "mean-colour", MeanColour)
    model = build(stem="mean-colour")
    assert isinstance(model.stem, MeanColour)
    pixels = images()
    assert model.features(pixels).patches.shape == (2, 2, 5, 12)
    shuffled = torch.cat([pixels[..., :4].flip(-1), pixels[..., 4:]], dim=-1)
    torch.testing.assert_close(model(shuffled), model(pixels), atol=1e-5, rtol=1e-5)  # float32


def test_a_stem_as_a_decorated_function() -> None:
    @vitlab.register("stem", "two-layers")
    def two_layers(config: ViTConfig) -> nn.Module:
        return MeanColour(config)

    assert STEMS["two-layers"] is two_layers
    assert build(stem="two-layers")(images()).shape == (2, 1000)


@pytest.mark.parametrize("place", ["stem", "every_layer", "shared_layers"])
def test_a_position(place: str) -> None:
    register("position", "rows", RowTable)
    model = build(position="rows", position_at=place, registers=2)
    assert len(model.positions) == (2 if place == "every_layer" else 1)
    pixels = images()
    # Two columns swapped are two tokens swapped: this position cannot tell them apart.
    swapped = torch.cat([pixels[..., 4:8], pixels[..., :4], pixels[..., 8:]], dim=-1)
    one, other = model.features(pixels), model.features(swapped)
    torch.testing.assert_close(one.cls, other.cls, atol=1e-5, rtol=1e-5)  # float32
    torch.testing.assert_close(
        one.patches[:, :, [1, 0, 2, 3, 4]], other.patches, atol=1e-5, rtol=1e-5
    )
    upside_down = model.features(torch.cat([pixels[:, :, 4:], pixels[:, :, :4]], dim=2))
    assert (upside_down.patches.flip(1) - one.patches).abs().max() > 1e-2


def test_an_attention() -> None:
    register("attention", "average", lambda config, layer: Average(config.width, config.heads))
    model = build(attention="average")
    assert model(images()).shape == (2, 1000)
    weights = model.attention(images(), layers=[1])[1]
    torch.testing.assert_close(weights, torch.full((2, 3, 11, 11), 1 / 11))


def test_an_attention_made_of_ours() -> None:
    @register("attention", "near-then-far")
    def near_then_far(config: ViTConfig, layer: int) -> nn.Module:
        return self_attention(config, Sliding(3) if layer == 0 else None)

    model = build(attention="near-then-far", position="rope", registers=1)
    near, far = model.attention(images()).values()
    assert (near[:, :, 2, 6] == 0).all()
    assert (near[:, :, 2, 3] > 0).all()
    assert (far > 0).all()


def test_a_variant_with_a_part() -> None:
    register("stem", "mean-colour", MeanColour)
    config = ViTConfig(**SIZES, stem="mean-colour", classes=5)
    register("variant", "vit_colours", config)
    assert "vit_colours" in vitlab.variants()
    model = vitlab.create_model("vit_colours", classes=3)
    assert model(images()).shape == (2, 3)
    assert from_dict(ViTConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("stem", "patch"),
        ("stem", "shifted"),
        ("position", "rope"),
        ("position", "none"),
        ("attention", "full"),
        ("attention", "lsa"),
        ("variant", "vit_b16"),
    ],
)
def test_names_of_ours_cannot_be_taken(kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} '{name}' is built in; choose another name"):
        register(kind, name, MeanColour)


def test_ones_own_name_can_be_given_again() -> None:
    register("stem", "mine", MeanColour)
    register("stem", "mine", RowTable)
    assert STEMS["mine"] is RowTable


def test_unknown_kinds_and_names() -> None:
    with pytest.raises(UnknownName, match="unknown kind of entry 'stems'; did you mean stem"):
        register("stems", "mine", MeanColour)
    with pytest.raises(UnknownName, match="unknown stem 'mine'; valid: conv, patch, resnet"):
        ViTConfig(**SIZES, stem="mine")


def test_a_registered_name_is_suggested() -> None:
    register("attention", "dilated", MeanColour)
    with pytest.raises(UnknownName, match="did you mean dilated"):
        ViTConfig(**SIZES, attention="dilatd")
