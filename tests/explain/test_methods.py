"""Every method against its published definition, for every kind of model, fused attention on."""

import functools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.vit_cases import BASE
from reference import explain as reference
from reference.random_weights import randomise
from vitlab.errors import InputError
from vitlab.explain.methods import explain
from vitlab.explain.request import ExplainRequest, Query
from vitlab.models.vit import VisionTransformer

B = 3
GRID = (3, 5)
W = 5
# Both sides compute in float64; they differ in the order of their sums alone.
TOLERANCE = 1e-9

PREFIXES: dict[int, dict[str, Any]] = {
    0: {"class_token": False, "pool": "mean"},
    1: {},
    5: {"registers": 4},
}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "lsa": {"attention": "lsa"},
    "sliding": {"attention": "sliding", "window_size": 3},
    "axial": {"attention": "axial", "depth": 3},
    "sparse": {"attention": "sparse", "window_size": 4},
    "qk_norm": {"qk_norm": True},
    "relative": {"position": "relative"},
    "rope": {"position": "rope"},
    "relative_bias": {"position": "relative_bias"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "relative_lsa": {"position": "relative", "attention": "lsa", "registers": 4},
    "rope_sliding": {
        "position": "rope",
        "attention": "sliding",
        "window_size": 3,
        "class_token": False,
        "pool": "mean",
    },
    "conditional": {"position": "conditional", "registers": 4},
    "conditional_every": {"position": "conditional", "position_at": "every_layer"},
    "relu2": {"mlp_activation": "relu2", "norm_bias": False},
    "post": {"norm": "post", "layer_scale": 0.5},
    "branch_norm": {"branch_norm": 0.2},
    "learned2d_every": {"position": "learned2d", "position_at": "every_layer"},
    "sincos2d_shared": {"position": "sincos2d", "position_at": "shared_layers"},
    "head_width": {"head_width": 5, "qkv_bias": False},
    "no_proj": {"proj": False},
}
EVEN = {"image_size": (18, 20), "pool_after": 1}
COARSER: dict[str, dict[str, Any]] = {
    "pooled": EVEN,
    "pooled_gap": {**EVEN, "depth": 3, "class_token": False, "pool": "mean"},
    "pooled_registers": {**EVEN, "depth": 3, "pool_after": 2, "registers": 4},
    "pooled_map": {**EVEN, "depth": 3, "pool": "map", "position": "rope"},
    "pooled_conditional": {
        **EVEN,
        "depth": 3,
        "position": "conditional",
        "position_at": "every_layer",
    },
    "pooled_sliding": {**EVEN, "attention": "sliding", "window_size": 3, "position": "relative"},
}
"""A grid of 6 x 10 that is halved on the way."""
POOLS: dict[str, dict[str, Any]] = {
    "map": {"pool": "map"},
    "map_registers": {"pool": "map", "class_token": False, "registers": 5},
    "mean_all": {"pool": "mean_all", "registers": 4},
    "mean_with_cls": {"pool": "mean", "norm_at": "pooled"},
    "mlp_head": {"head": "mlp", "representation_size": 19},
}
STEMS: dict[str, dict[str, Any]] = {
    "shifted": {"stem": "shifted"},
    "conv": {"stem": "conv", "patch_size": 4, "image_size": (12, 20), "conv_widths": (7,)},
    "hybrid": {"stem": "resnet", "resnet_width": 32, "image_size": (12, 20), "patch_size": 1},
}
PLAIN = replace(BASE, patch_size=(3, 2), image_size=(9, 10))
CASES = {
    **{
        f"{kind}-{prefix}": replace(PLAIN, **changes | more)
        for kind, changes in KINDS.items()
        for prefix, more in PREFIXES.items()
    },
    **{
        name: replace(PLAIN, **changes)
        for name, changes in (OTHERS | COARSER | POOLS | STEMS).items()
    },
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attention be computed by the fused kernel, as on an accelerator."""
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")


@functools.cache
def build(case: str) -> tuple[VisionTransformer, Tensor, Tensor]:
    """A model whose every part speaks, images, and a class for each."""
    config = CASES[case]
    model = VisionTransformer(config).double().eval()
    randomise(model)
    generator = torch.Generator().manual_seed(1)
    shape = (B, config.channels, *config.image_size)
    images = torch.randn(shape, dtype=torch.float64, generator=generator)
    return model, images, torch.tensor([2, 7, 5])


@functools.cache
def solve(case: str) -> tuple[reference.Insides, dict[str, Any], Tensor]:
    """What the restatement says, with the images that its gradients end in."""
    model, images, _ = build(case)
    config, state = asdict(model.config), model.state_dict()
    stem: Callable[[Tensor], Tensor] = model.stem
    if config["stem"] == "patch":
        stem = reference.plain_stem(state, config)
    images = images.clone().requires_grad_()
    return reference.insides(state, config, images, stem), config, images


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), atol=TOLERANCE, rtol=TOLERANCE)


def patches(rows: Tensor, found: reference.Insides, layer: int | None = None) -> Tensor:
    """[..., N] without the prefix, row by row of the grid of a block, or of the stem."""
    return lying(rows[..., found.prefix :], found.grid if layer is None else found.grids[layer])


def lying(values: Tensor, grid: tuple[int, int]) -> Tensor:
    height, width = grid
    return torch.stack([values[..., y * width : (y + 1) * width] for y in range(height)], dim=-2)


def last_query(inside: reference.Insides, config: dict[str, Any], layer: int) -> Tensor:
    """Who is asked behind a block; an average over pooled patches is one over all of them."""
    if inside.probe is None:
        return reference.asked(inside, config, inside.attention[layer].shape[-1])
    looks = inside.probe.mean(dim=1)
    return looks @ inside.pooled if inside.grids[layer] != inside.grids[-1] else looks


@every_case
def test_attention_is_the_softmax_by_hand(case: str) -> None:
    model, images, _ = build(case)
    inside, config, _ = solve(case)
    found = explain(model, images, ExplainRequest(method="attention", each="head"))
    close(found.logits, inside.logits)
    assert len(found.maps.layers) == config["depth"]
    assert inside.grids[-1] == GRID
    for layer, weights in enumerate(inside.attention):
        query = last_query(inside, config, layer)
        looks = torch.einsum("bm,bamn->ban", query, weights)  # [B, A, N]
        close(found.maps.layers[layer], patches(looks, inside, layer))
        assert found.maps.layers[layer].shape == (B, config["heads"], *inside.grids[layer])
    last = inside.probe if inside.probe is not None else looks
    close(found.maps.map, patches(last.mean(dim=1), inside, -1))
    assert found.maps.elsewhere is not None
    close(found.maps.elsewhere, last.mean(dim=1)[:, : inside.prefix].sum(dim=1))


@every_case
def test_one_head_of_one_block_as_one_patch_sees_it(case: str) -> None:
    model, images, _ = build(case)
    inside, _, _ = solve(case)
    found = explain(
        model, images, ExplainRequest(method="attention", layer=0, head=2, token=(1, 3))
    )
    query = inside.prefix + 1 * inside.grid[1] + 3
    close(found.maps.map, patches(inside.attention[0][:, 2, query], inside))


@every_case
def test_rollout_is_the_published_product(case: str) -> None:
    model, images, _ = build(case)
    inside, config, _ = solve(case)
    found = explain(model, images, ExplainRequest(method="rollout", each="layer")).maps
    rows = reference.rollout(inside, last_query(inside, config, -1))
    close(found.map, patches(rows, inside))
    assert found.elsewhere is not None
    close(found.elsewhere, rows[:, : inside.prefix].sum(dim=1))
    for layer, values in enumerate(found.layers):
        until = replace_attention(inside, inside.attention[: layer + 1])
        query = last_query(inside, config, layer)
        close(values, patches(reference.rollout(until, query), inside))


def replace_attention(inside: reference.Insides, attention: list[Tensor]) -> reference.Insides:
    return reference.Insides(**vars(inside) | {"attention": attention})


@every_case
def test_relevance_is_the_published_product(case: str) -> None:
    model, images, target = build(case)
    inside, config, _ = solve(case)
    found = explain(model, images, ExplainRequest(method="relevance", each="layer"), target)
    expected = patches(reference.relevance(inside, config, target), inside)
    assert expected.detach().std() > 1e-4, "a case that shows nothing"
    close(found.maps.map, expected)
    close(found.maps.layers[-1], expected)
    assert len(found.maps.layers) == config["depth"]


@every_case
def test_gradcam_is_the_published_sum(case: str) -> None:
    model, images, target = build(case)
    inside, config, _ = solve(case)
    found = explain(model, images, ExplainRequest(method="gradcam", each="layer"), target).maps
    for layer, node in enumerate(inside.read):
        expected = reference.gradcam(inside, node, target)
        close(found.layers[layer], lying(expected, inside.grids[layer]))
    node = inside.read[-1] if config["pool"] == "cls" else inside.tokens
    close(found.map, lying(reference.gradcam(inside, node, target), GRID))
    first = explain(model, images, ExplainRequest(method="gradcam", layer=0), target).maps
    close(first.map, found.layers[0])


@every_case
def test_input_gradient_is_autograds(case: str) -> None:
    model, images, target = build(case)
    inside, config, leaf = solve(case)
    found = explain(model, images, ExplainRequest(method="input-gradient"), target).maps
    score = inside.logits.gather(1, target[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, leaf, retain_graph=True)
    fine = (gradient**2).sum(dim=1).sqrt()
    assert found.fine is not None
    close(found.fine, fine)
    if config["stem"] in ("patch", "shifted"):
        high, wide = config["patch_size"]
        for y in range(inside.grid[0]):
            for x in range(inside.grid[1]):
                part = fine[:, y * high : (y + 1) * high, x * wide : (x + 1) * wide]
                close(found.map[:, y, x], part.mean(dim=(1, 2)))


def test_relevance_as_far_as_a_block_has_read() -> None:
    model, images, target = build("full-1")
    inside, _, _ = solve("full-1")
    found = explain(model, images, ExplainRequest(method="relevance", each="layer"), target).maps
    score = inside.logits.gather(1, target[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, inside.attention[0], retain_graph=True)
    bar = (inside.attention[0] * gradient).clamp(min=0).mean(dim=1)
    # Behind the first block, R is I + bar; the class token is not a patch, so I adds nothing.
    close(found.layers[0], patches(bar[:, 0], inside))


def test_rollout_from_a_patch_and_until_a_block() -> None:
    model, images, _ = build("full-5")
    inside, _, _ = solve("full-5")
    query = torch.zeros(B, inside.tokens.shape[1], dtype=torch.float64)
    query[:, 5 + 2 * W + 4] = 1.0
    found = explain(model, images, ExplainRequest(method="rollout", token=(2, 4))).maps
    close(found.map, patches(reference.rollout(inside, query), inside))
    found = explain(model, images, ExplainRequest(method="rollout", token=(2, 4), layer=0)).maps
    until = replace_attention(inside, inside.attention[:1])
    close(found.map, patches(reference.rollout(until, query), inside))


def test_the_likeliest_class_is_explained_unless_told() -> None:
    model, images, _ = build("full-1")
    answer = explain(model, images, ExplainRequest(method="relevance"))
    assert torch.equal(answer.target, answer.logits.argmax(dim=1))
    told = explain(model, images, ExplainRequest(method="relevance"), answer.target)
    assert torch.equal(answer.maps.map, told.maps.map)


@pytest.mark.parametrize("method", ["attention", "rollout", "relevance", "gradcam"])
def test_the_model_runs_fused_and_is_left_as_it_was(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images, _ = build("sliding-1")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    calls = []
    fused = F.scaled_dot_product_attention

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(1)
        return fused(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    with torch.inference_mode(mode=method in ("attention", "rollout")):
        explain(model, images, ExplainRequest(method=method))
    assert len(calls) >= 2
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())


def test_frozen_weights_and_switched_off_gradients_change_nothing() -> None:
    model, images, target = build("full-1")
    expected = explain(model, images, ExplainRequest(method="relevance"), target).maps.map
    model.requires_grad_(False)
    try:
        with torch.no_grad():
            for method in ("relevance", "gradcam", "input-gradient"):
                explain(model, images, ExplainRequest(method=method), target)
            found = explain(model, images, ExplainRequest(method="relevance"), target).maps.map
    finally:
        model.requires_grad_(True)
    close(found, expected)


def test_a_patch_of_the_fine_grid_is_found_in_the_coarse_one() -> None:
    model, images, _ = build("pooled")
    inside, _, _ = solve("pooled")
    for token in ((5, 7), (4, 6)):
        found = explain(model, images, ExplainRequest(method="attention", token=token, head=1)).maps
        query = inside.prefix + 2 * W + 3
        close(found.map, patches(inside.attention[1][:, 1, query], inside, 1))


@pytest.mark.parametrize("pool", ["mean", "map", "cls"])
def test_a_model_without_blocks(pool: Any) -> None:
    config = replace(PLAIN, depth=0, pool=pool)
    model = VisionTransformer(config).double().eval()
    randomise(model)
    images = build("full-1")[1].clone().requires_grad_()
    target = torch.tensor([2, 7, 5])
    score = model(images).gather(1, target[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, images)
    found = explain(model, images.detach(), ExplainRequest(method="input-gradient"), target).maps
    assert found.fine is not None
    close(found.fine, gradient.norm(dim=1))
    allowed = {"mean": ["gradcam"], "map": ["gradcam", "attention"], "cls": []}[pool]
    for method in ("attention", "rollout", "relevance", "gradcam"):
        if method in allowed:
            assert explain(
                model, images.detach(), ExplainRequest(method=method)
            ).maps.map.shape == (B, *GRID)
        else:
            with pytest.raises(InputError, match="the model has none; valid: "):
                explain(model, images.detach(), ExplainRequest(method=method))


def test_images_of_another_size_have_another_grid() -> None:
    config = replace(PLAIN, dynamic_size=True)
    model = VisionTransformer(config).double().eval()
    images = torch.randn(2, config.channels, 21, 22, dtype=torch.float64)
    found = explain(model, images, ExplainRequest(method="rollout", token=(6, 10))).maps
    assert found.map.shape == (2, 7, 11)
    with pytest.raises(InputError, match="token 7,0; valid: rows 0 to 6, columns 0 to 10"):
        explain(model, images, ExplainRequest(method="rollout", token=(7, 0)))


def test_who_is_asked_is_said() -> None:
    words = {case: Query().words(CASES[case]) for case in ("full-1", "full-0", "map", "mean_all")}
    assert words["full-1"] == "the class token"
    assert "averages its patches and has no class token" in words["full-0"]
    assert "averages its patches and reads no class token" in Query().words(CASES["mean_with_cls"])
    assert "attention pooling" in words["map"]
    assert "averages all of its tokens" in words["mean_all"]
