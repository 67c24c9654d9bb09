"""Images that a model refuses, and images of other sizes than configured."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.random_weights import randomise
from reference.resize import resized, zoom
from reference.vit import reference_vit
from vitlab.errors import InputError
from vitlab.models.config import ViTConfig
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer
from vitlab.nn.resize import ResizeMethod, resize_grid

# A different prime for every axis.
BASE = ViTConfig(
    width=12,
    depth=2,
    heads=3,
    mlp_width=17,
    patch_size=(3, 2),
    image_size=(15, 14),
    channels=5,
    classes=11,
)
OTHER = (9, 22)  # grid (3, 11) instead of (5, 7)
TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}  # float64, other order of sums


def build(config: ViTConfig) -> VisionTransformer:
    model = VisionTransformer(config).double().eval()
    randomise(model)
    return model


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 4, 15, 14), "images of shape [2, 4, 15, 14]; valid: [batch, 5, height, width]"),
        ((5, 15, 14), "images of shape [5, 15, 14]; valid: [batch, 5, height, width]"),
        ((1, 2, 5, 15, 14), "valid: [batch, 5, height, width]"),
        ((2, 15, 14, 5), "images of shape [2, 15, 14, 5]"),
        ((2, 5, 14, 15), "images of 15 x 14 pixels (width x height); the model takes 14 x 15"),
        (
            (2, 5, 18, 14),
            "images of 14 x 18 pixels (width x height); the model takes 14 x 15 (dynamic_size=True",
        ),
    ],
)
def test_wrong_images_are_refused(shape: tuple[int, ...], message: str) -> None:
    model = build(BASE)
    for call in (model, model.features, model.attention):
        with pytest.raises(InputError) as error:
            call(draw(*shape))
        assert message in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.usefixtures("no_type_checks")
def test_bytes_are_refused() -> None:
    with pytest.raises(InputError, match=r"images of torch\.uint8; valid: floating point"):
        build(BASE)(torch.zeros(1, 5, 15, 14, dtype=torch.uint8))


@pytest.mark.parametrize("layer", [2, -3, 100])
def test_layers_out_of_range_are_refused(layer: int) -> None:
    model, images = build(BASE), draw(1, 5, 15, 14)
    for call in (model.features, model.attention):
        with pytest.raises(InputError, match=rf"layer {layer} does not exist; valid: -2 to 1"):
            call(images, layers=[0, layer])


POSITIONS: dict[str, dict[str, Any]] = {
    "learned1d": {"registers": 2},
    "learned1d_all": {"registers": 2, "position_prefix": "all"},
    "learned1d_every": {"position_at": "every_layer"},
    "learned1d_gap": {"class_token": False, "pool": "mean"},
    "learned2d": {"position": "learned2d", "registers": 1},
    "learned2d_shared": {"position": "learned2d", "position_at": "shared_layers"},
    "relative": {"position": "relative"},
    "relative_sliding": {"position": "relative", "attention": "sliding", "window_size": 3},
    "none": {"position": "none", "attention": "axial"},
    "relative_bias": {"position": "relative_bias", "pool": "mean"},
    "conditional": {"position": "conditional", "position_at": "every_layer", "registers": 2},
}


@pytest.mark.parametrize("method", ["bicubic", "zoom"])
@pytest.mark.parametrize("changes", POSITIONS.values(), ids=list(POSITIONS))
def test_dynamic_size_resizes_the_tables(changes: dict[str, Any], method: ResizeMethod) -> None:
    config = replace(BASE, dynamic_size=True, position_resize=method, **changes)
    model = build(config)
    images = draw(2, 5, *OTHER)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, value in state.items():
        if name.endswith("offset_bias.table"):
            continue  # An offset keeps its number at any size.
        if name.endswith(".table"):
            entries = config.positioned_prefix
            grid = value[entries:].reshape(5, 7, config.width)
            patches = resized(grid, (3, 11), method).reshape(33, config.width)
            state[name] = torch.cat([torch.from_numpy(value[:entries]), torch.from_numpy(patches)])
        elif name.endswith((".rows", ".columns")):
            length = 3 if name.endswith(".rows") else 11
            state[name] = resized(value[:, None], (length, 1), method)[:, 0]
        elif name.endswith(".offsets"):
            state[name] = zoom(value, 2 * 33 - 1)
    expected = reference_vit(state, asdict(config))(images)
    assert expected.grid == (3, 11)
    torch.testing.assert_close(
        model(images).detach(), torch.from_numpy(expected.logits), **TOLERANCE
    )
    features = model.features(images, layers=[0])
    assert features.patches.shape == (2, 3, 11, 12)
    torch.testing.assert_close(
        features.tokens.detach(), torch.from_numpy(expected.tokens), **TOLERANCE
    )
    for layer, weights in model.attention(images).items():
        torch.testing.assert_close(
            weights.detach(), torch.from_numpy(expected.attention[layer]), **TOLERANCE
        )


@pytest.mark.parametrize("position", ["sincos2d", "rope"])
def test_fixed_positions_spread_over_the_configured_grid(position: str) -> None:
    model = build(replace(BASE, dynamic_size=True, position=position, registers=2))
    images = draw(2, 5, *OTHER)
    settings = asdict(replace(model.config, position_grid=(5, 7)))
    expected = reference_vit(model.state_dict(), settings)(images)
    torch.testing.assert_close(
        model(images).detach(), torch.from_numpy(expected.logits), **TOLERANCE
    )


@pytest.mark.parametrize("method", ["bicubic", "zoom"])
def test_dynamic_size_equals_a_model_with_a_resized_table(method: ResizeMethod) -> None:
    dynamic = build(replace(BASE, dynamic_size=True, position_resize=method))
    fixed = VisionTransformer(replace(BASE, image_size=OTHER)).double().eval()
    state = dynamic.state_dict()
    table = state["positions.0.table"]
    patches = resize_grid(table[1:].view(5, 7, 12), (3, 11), method).flatten(0, 1)
    fixed.load_state_dict({**state, "positions.0.table": torch.cat([table[:1], patches])})
    images = draw(3, 5, *OTHER)
    torch.testing.assert_close(dynamic(images), fixed(images), **TOLERANCE)


def test_dynamic_size_changes_nothing_at_the_configured_size() -> None:
    images = draw(2, 5, 15, 14)
    models = [build(replace(BASE, dynamic_size=dynamic)) for dynamic in (False, True)]
    assert torch.equal(models[0](images), models[1](images))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((16, 14), "(16, 14): height is not a multiple of patch_size (3, 2)"),
        ((15, 15), "(15, 15): width is not a multiple of patch_size (3, 2)"),
        ((2, 14), "(2, 14): height is not a multiple of patch_size (3, 2)"),
    ],
)
def test_dynamic_size_still_needs_whole_patches(size: tuple[int, int], message: str) -> None:
    model = build(replace(BASE, dynamic_size=True))
    with pytest.raises(InputError) as error:
        model(draw(1, 5, *size))
    assert message in str(error.value)


def test_dynamic_size_of_a_hybrid() -> None:
    config = replace(
        BASE,
        stem="resnet",
        resnet_width=32,
        resnet_layers=(1, 1),
        patch_size=1,
        image_size=(32, 24),
        dynamic_size=True,
    )
    model = build(config)
    assert model.features(draw(1, 5, 33, 17)).patches.shape == (1, 5, 3, 12)
    with pytest.raises(InputError, match="feature map width 3"):
        build(replace(config, patch_size=(1, 2), image_size=(32, 32)))(draw(1, 5, 32, 17))


def test_a_pooled_grid_of_another_size() -> None:
    changes = {"pool_after": 1, "position": "rope", "position_resize": "zoom"}
    model = build(replace(BASE, image_size=(12, 16), dynamic_size=True, **changes))
    images = draw(2, 5, 18, 20)
    settings = asdict(replace(model.config, position_grid=(4, 8)))
    expected = reference_vit(model.state_dict(), settings)(images)
    assert expected.grids == [(6, 10), (3, 5)]
    torch.testing.assert_close(
        model(images).detach(), torch.from_numpy(expected.logits), **TOLERANCE
    )
    assert model.features(images, layers=[0]).layers[0].patches.shape == (2, 6, 10, 12)
    assert model.layer(images, 0).patches.shape == (2, 6, 10, 12)
    assert model.layer(images, 1).patches.shape == (2, 3, 5, 12)
    with pytest.raises(InputError) as error:
        model(draw(1, 5, 15, 20))
    assert "images of size (15, 20): the grid of 5x10 patches is not even" in str(error.value)


def test_tables_learn_at_other_sizes() -> None:
    model = VisionTransformer(replace(BASE, dynamic_size=True)).double().train()
    randomise(model)
    model(draw(2, 5, *OTHER)).sum().backward()
    gradient = model.positions[0].table.grad
    assert gradient is not None
    assert (gradient.abs().sum(1) > 0).all()


@pytest.mark.parametrize("changes", [{}, {"class_token": False, "pool": "mean"}])
def test_a_model_without_blocks(changes: dict[str, Any]) -> None:
    """Stem, positions, norm, pooling and head are left."""
    model = create_model("vit_test", depth=0, **changes).double().eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    tokens = model.stem(images).flatten(1, 2)
    if model.cls_token is not None:
        tokens = torch.cat([model.cls_token.expand(3, -1, -1), tokens], dim=1)
    tokens = model.encoder.norm(tokens + model.positions[0]((4, 4)))
    pooled = tokens.mean(dim=1) if changes else tokens[:, 0]
    torch.testing.assert_close(model(images), model.head(pooled))
    torch.testing.assert_close(model.logits(images), model.head(pooled))
    torch.testing.assert_close(model.features(images).pooled, pooled)
    assert model.attention(images) == {}
    with pytest.raises(InputError, match="layer 0 does not exist: the model has no encoder blocks"):
        model.layer(images, 0)


def test_a_list_is_computed_by_size_and_answered_in_order() -> None:
    model = build(replace(BASE, dynamic_size=True))
    sizes = [(15, 14), OTHER, (15, 14), (18, 14)]
    images = [draw(5, *size) + number for number, size in enumerate(sizes)]
    alone = [model(image[None]) for image in images]
    torch.testing.assert_close(model(images), torch.cat(alone), **TOLERANCE)
    found = model.features(images, layers=[0, -1])
    assert [f.patches.shape[1:3] for f in found] == [(5, 7), (3, 11), (5, 7), (6, 7)]
    for image, features in zip(images, found, strict=True):
        expected = model.features(image[None], layers=[0, -1])
        for one, other in ((features, expected), (features.layers[-1], expected.layers[-1])):
            torch.testing.assert_close(one.tokens, other.tokens, **TOLERANCE)
            torch.testing.assert_close(one.patches, other.patches, **TOLERANCE)
            assert one.registers.shape == other.registers.shape
        torch.testing.assert_close(features.pooled, expected.pooled, **TOLERANCE)


@pytest.mark.usefixtures("no_type_checks")
def test_a_list_without_images_or_of_wrong_ones_is_refused() -> None:
    model = build(BASE)
    with pytest.raises(InputError, match="no images; valid: a tensor, or a list"):
        model([])
    with pytest.raises(InputError, match=r"images of 22 x 9 pixels .*dynamic_size=True"):
        model([draw(5, *OTHER)])
    with pytest.raises(InputError, match=r"valid: \[batch, 5, height, width\]"):
        model([draw(15, 14)])
