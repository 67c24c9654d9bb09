"""Each step of the walkthrough is the model's: for every setting of the family."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from models.vit_cases import CASES
from reference.random_weights import randomise
from reference.vit import reference_vit
from vitlab import VisionTransformer, create_model, register
from vitlab.errors import InputError, Lacks
from vitlab.explain.walkthrough import Walkthrough, walk_through
from vitlab.models.parts import self_attention
from vitlab.nn.lora import add_lora
from vitlab.registry import ATTENTIONS

# float64 on both sides, through two layers.
TOLERANCE: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-9}


def build(name: str) -> VisionTransformer:
    model = VisionTransformer(CASES[name]).double().eval()
    randomise(model)
    return model


def draw_image(model: VisionTransformer) -> torch.Tensor:
    height, width = np.broadcast_to(model.config.image_size, 2).tolist()
    generator = torch.Generator().manual_seed(1)
    shape = (model.config.channels, height, width)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_steps_are_those_of_the_model(name: str) -> None:
    model = build(name)
    image = draw_image(model)
    layer, head = model.config.depth - 1, model.config.heads - 1
    found = walk_through(model, image, layer=layer, head=head)
    assert found.difference < 1e-10
    torch.testing.assert_close(found.projected, found.own, **TOLERANCE)
    weights = reference_vit(model.state_dict(), asdict(model.config))(image[None]).attention[layer]
    np.testing.assert_allclose(found.head.weights, weights[0, head], **TOLERANCE)
    np.testing.assert_allclose(found.all_weights, weights[0, :, found.query], **TOLERANCE)
    torch.testing.assert_close(found.head.weights @ found.head.v, found.head.output, **TOLERANCE)


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "registers",
        "gap",
        "prefix_none",
        "shifted_both",
        "patch_norm_both",
        "conv",
        "conditional",
    ],
)
def test_the_tokens_are_those_that_enter_the_encoder(name: str) -> None:
    model = build(name)
    found = walk_through(model, draw_image(model))
    torch.testing.assert_close(found.embedded.tokens, found.entering, **TOLERANCE)
    embedded = found.embedded
    if embedded.flat is not None and embedded.projection is not None:
        made = embedded.projection(embedded.flat)
        if "after" not in model.config.patch_norm and "both" not in model.config.patch_norm:
            torch.testing.assert_close(made, embedded.patches, **TOLERANCE)
        assert len(made) == embedded.grid[0] * embedded.grid[1]
    assert (embedded.flat is None) == (name == "conv")


@pytest.mark.parametrize(
    "name", ["every_layer", "learned2d_shared", "conditional_every", "conditional_shared"]
)
def test_tables_of_layers_are_told_apart_from_the_tokens(name: str) -> None:
    model = build(name)
    found = walk_through(model, draw_image(model))
    assert found.embedded.positions is None
    assert found.layer_positions is not None
    expected = found.embedded.tokens + found.layer_positions
    torch.testing.assert_close(found.entering, expected, **TOLERANCE)


@pytest.mark.parametrize(
    "name", ["paper", "layer_scale", "branch_norm", "post_norm_scaled", "no_proj"]
)
def test_what_leaves_is_what_the_block_goes_on_with(name: str) -> None:
    model = build(name)
    found = walk_through(model, draw_image(model), layer=1)
    block: Any = model.encoder.blocks[1]
    x = found.leaving[None]
    with torch.no_grad():
        if block.norm_first:
            expected = x + block._branch(block.mlp(block.norm2(x)), block.scale2)
        else:
            normed = block.norm1(x)
            expected = block.norm2(normed + block._branch(block.mlp(normed), block.scale2))
        last = model.features(draw_image(model)[None], layers=[1]).layers[1].tokens
    torch.testing.assert_close(expected, last, **TOLERANCE)


def test_the_parts_are_there_where_a_model_has_them() -> None:
    def head(name: str) -> Any:
        return walk_through(build(name), draw_image(build(name))).head

    plain = head("paper")
    parts = ("normed", "turned", "offsets", "looks")
    assert [getattr(plain, part) for part in parts] == [None] * 4
    assert plain.scale == 0.5  # 1 / sqrt(4)
    assert head("qk_norm").normed is not None
    assert head("rope").turned is not None
    assert head("relative").offsets is not None
    assert head("relative_bias").offsets is not None
    warmed = head("lsa")
    assert warmed.scale != 0.5
    assert warmed.weights.diagonal().tolist() == [0.0] * len(warmed.weights)
    assert warmed.scores.diagonal().isinf().all()
    sliding = head("sliding")
    assert ((sliding.weights > 0) == sliding.looks).all()


def test_a_block_of_fewer_patches() -> None:
    model = build("pooled_conditional")  # 6 x 10 patches behind 3 tokens, then 3 x 5
    found = walk_through(model, draw_image(model), layer=2, token=(2, 4))
    assert (found.embedded.grid, found.grid, found.query) == ((6, 10), (3, 5), 3 + 2 * 5 + 4)
    assert len(found.entering) == len(found.head.weights) == 18
    assert found.layer_positions is not None
    assert len(found.layer_positions) == 18


def test_the_token_asked_for_is_followed() -> None:
    model = build("registers")  # 5 x 7 patches behind 3 tokens
    image = draw_image(model)
    assert walk_through(model, image).query == 3 + 2 * 7 + 3
    assert walk_through(model, image, token=(4, 1)).query == 3 + 4 * 7 + 1
    last: Walkthrough = walk_through(model, image, layer=-1, head=-1)
    assert (last.layer, last.number) == (1, 2)


def test_float32_is_near() -> None:
    model = build("paper").float()
    found = walk_through(model, draw_image(model).float())
    assert 0 < found.difference < 1e-5


def test_updates_of_low_rank_are_part_of_the_matrices() -> None:
    model = build("paper")
    add_lora(model, rank=2)
    randomise(model)
    assert walk_through(model, draw_image(model)).difference < 1e-10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 2}, "layer 2 does not exist; valid: -2 to 1"),
        ({"head": 3}, "head 3 does not exist; valid: -3 to 2"),
        ({"token": (5, 0)}, "token 5,0 is not in the grid; valid: row 0 to 4, column 0 to 6"),
        ({"token": (0, -1)}, "token 0,-1 is not in the grid"),
    ],
)
def test_what_is_not_there_is_refused(arguments: Any, message: str) -> None:
    model = build("paper")
    with pytest.raises(InputError, match=message):
        walk_through(model, draw_image(model), **arguments)


def test_other_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Lacks, match="a TutorialCNN has no heads to follow"):
        walk_through(create_model("cnn_tutorial"), torch.zeros(3, 32, 32))

    class Own(torch.nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.inner = self_attention(config)

        def forward(self, x: Any, grid: Any) -> Any:
            return self.inner(x, grid)

    monkeypatch.setattr(ATTENTIONS, "_entries", dict(ATTENTIONS._entries))  # gone after the test
    register("attention", "own", lambda config, layer: Own(config))
    model = create_model("vit_test", attention="own")
    with pytest.raises(Lacks, match="Own is an attention of your own"):
        walk_through(model, torch.zeros(3, 32, 32))
