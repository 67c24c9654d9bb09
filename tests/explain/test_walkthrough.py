"""Each step of the walkthrough is the model's, for every kind that is explained."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from models.vit_cases import CASES
from reference.random_weights import randomise
from reference.vit import reference_vit
from vitlab import VisionTransformer, create_model, register
from vitlab.errors import InputError, Unsupported
from vitlab.explain.walkthrough import KINDS, Walkthrough, walk_through
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


EXPLAINED = [
    name
    for name, config in sorted(CASES.items())
    if all(getattr(config, field) in valid for field, valid in KINDS.items())
]


@pytest.mark.parametrize("name", EXPLAINED)
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
    torch.testing.assert_close(found.mlp.leaving, found.mlp.own, **TOLERANCE)
    with torch.no_grad():
        last = model.features(image[None], layers=[layer]).layers[layer].tokens[0]
        torch.testing.assert_close(found.mlp.leaving, last, **TOLERANCE)
        if found.readout.logits is not None:
            torch.testing.assert_close(found.readout.logits, model(image[None])[0], **TOLERANCE)


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "registers",
        "gap",
        "prefix_none",
        "conv",
    ],
)
def test_the_tokens_are_those_that_enter_the_encoder(name: str) -> None:
    model = build(name)
    found = walk_through(model, draw_image(model))
    torch.testing.assert_close(found.embedded.tokens, found.entering, **TOLERANCE)
    embedded = found.embedded
    if embedded.flat is not None and embedded.projection is not None:
        made = embedded.projection(embedded.flat)
        torch.testing.assert_close(made, embedded.patches, **TOLERANCE)
        assert len(made) == embedded.grid[0] * embedded.grid[1]
    assert (embedded.flat is None) == (name == "conv")


def test_the_head_after_each_block() -> None:
    model = build("paper")
    image = draw_image(model)[None]
    found = walk_through(model, image[0]).readout
    assert found.by_layer is not None
    with torch.no_grad():
        first = model.encoder.norm(model.features(image, layers=[0]).layers[0].tokens)
        torch.testing.assert_close(found.by_layer[0], model.classify(first[:, 0])[0], **TOLERANCE)
        torch.testing.assert_close(found.by_layer[-1], model(image)[0], **TOLERANCE)


def test_the_parts_are_there_where_a_model_has_them() -> None:
    def head(name: str) -> Any:
        return walk_through(build(name), draw_image(build(name))).head

    plain = head("paper")
    assert (plain.normed, plain.offsets) == (None, None)
    assert plain.scale == 0.5  # 1 / sqrt(4)
    assert head("qk_norm").normed is not None
    assert head("relative_bias").offsets is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lsa", "attention lsa is not explained; valid: full"),
        ("axial", "attention axial is not explained; valid: full"),
        ("rope", "position rope is not explained; valid: learned1d, learned2d, sincos2d, "),
        ("relative", "position relative is not explained; valid: "),
        ("conditional", "position conditional is not explained; valid: "),
        ("every_layer", "position_at every_layer is not explained; valid: stem"),
        ("shifted", "stem shifted is not explained; valid: patch, conv, resnet"),
        ("patch_norm_both", "patch_norm both is not explained; valid: none"),
        ("post_norm", "norm post is not explained; valid: pre"),
        ("no_proj", "proj False is not explained; valid: True"),
        ("swiglu", "mlp_activation swiglu is not explained; valid: gelu, relu2"),
    ],
)
def test_other_kinds_are_refused_by_name(name: str, message: str) -> None:
    model = build(name)
    with pytest.raises(Unsupported, match=f"walkthrough: {message}"):
        walk_through(model, draw_image(model))


def test_a_block_of_fewer_patches() -> None:
    model = build("pooled")  # 6 x 10 patches behind a class token, then 3 x 5
    found = walk_through(model, draw_image(model), layer=1, token=(2, 4))
    assert (found.embedded.grid, found.grid, found.query) == ((6, 10), (3, 5), 1 + 2 * 5 + 4)
    assert len(found.entering) == len(found.head.weights) == 16


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
    with pytest.raises(Unsupported, match="a TutorialCNN has no heads to follow"):
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
    with pytest.raises(Unsupported, match="attention own is not explained; valid: full"):
        walk_through(model, torch.zeros(3, 32, 32))
