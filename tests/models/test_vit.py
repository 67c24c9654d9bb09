"""Every member of the family against its plain definition: logits, features and attention."""

import functools
import math
from dataclasses import MISSING, asdict, fields
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.vit_cases import CASES, GROUPED
from reference.looks import looks
from reference.random_weights import randomise
from reference.vit import Answer, reference_vit
from vitlab.models.config import ViTConfig, pair
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.attention_variants import sparse
from vitlab.nn.pattern import pattern_groups
from vitlab.registry import ATTENTIONS, POSITIONS, STEMS

B = 3
# Both sides compute in float64; they differ in the order of their sums alone.
TOLERANCE = 1e-10
# Settings that change nothing in evaluation at the configured size; they have tests of their own.
ELSEWHERE = {"dropout", "attention_dropout", "drop_path", "dynamic_size", "position_resize"}
ELSEWHERE |= {"zero_init_residual", "relative_local", "position_std"}

every_case = pytest.mark.parametrize("case", CASES)


@functools.cache
def build(case: str) -> tuple[VisionTransformer, Tensor]:
    """The model of a case with weights that leave no part silent, and images for it."""
    config = CASES[case]
    model = VisionTransformer(config).double().eval()
    randomise(model)
    generator = torch.Generator().manual_seed(1)
    shape = (B, config.channels, *pair(config.image_size))
    return model, torch.randn(shape, dtype=torch.float64, generator=generator)


@functools.cache
def solve(case: str) -> Answer:
    model, images = build(case)
    return reference_vit(model.state_dict(), asdict(model.config))(images)


def close(found: Tensor, expected: NDArray[np.float64]) -> None:
    torch.testing.assert_close(
        found.detach(), torch.from_numpy(expected), atol=TOLERANCE, rtol=TOLERANCE
    )


@every_case
def test_logits_match_the_definition(case: str) -> None:
    model, images = build(case)
    close(model(images), solve(case).logits)


@every_case
def test_features_match_the_definition(case: str) -> None:
    model, images = build(case)
    config, expected = model.config, solve(case)
    first = int(config.class_token)
    found = model.features(images, layers=range(config.depth))
    assert expected.grid == config.grid
    assert expected.grids == [config.grid_at(layer) for layer in range(config.depth)]
    assert list(found.layers) == list(range(config.depth))
    close(found.pooled, expected.pooled)
    stages = [(found, expected.tokens, expected.grids[-1])]
    stages += zip(found.layers.values(), expected.layers, expected.grids, strict=True)
    for part, tokens, (rows, columns) in stages:
        close(part.tokens, tokens)
        close(part.registers, tokens[:, first : config.prefix])
        lines = [
            tokens[:, config.prefix + row * columns : config.prefix + (row + 1) * columns]
            for row in range(rows)
        ]
        close(part.patches, np.stack(lines, axis=1))
        if config.class_token:
            assert part.cls is not None
            close(part.cls, tokens[:, 0])
        else:
            assert part.cls is None


@every_case
def test_attention_matches_the_definition(case: str) -> None:
    model, images = build(case)
    config, expected = model.config, solve(case).attention
    found = model.attention(images)
    assert list(found) == list(range(config.depth))
    for layer, weights in found.items():
        tokens = config.prefix + math.prod(solve(case).grids[layer])
        assert weights.shape == (B, config.heads, tokens, tokens)
        assert config.tokens_at(layer) == tokens
        close(weights, expected[layer])
        close(weights.sum(-1), np.ones(weights.shape[:-1]))
        mask = looks(
            config.attention,
            grid=solve(case).grids[layer],
            prefix=config.prefix,
            window=config.window_size,
            layer=layer,
        )
        seen = torch.from_numpy(np.ones(weights.shape[2:], dtype=bool) if mask is None else mask)
        assert (weights[:, :, ~seen] == 0).all()
        assert (weights[:, :, seen] > 0).all()


@every_case
def test_fused_attention_gives_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build(case)
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")
    close(model(images), solve(case).logits)


@every_case
def test_each_image_is_its_own(case: str) -> None:
    model, images = build(case)
    with torch.no_grad():
        together, order = model(images), torch.tensor([2, 0, 1])
        close(model(images[order]), together[order].numpy())
        close(model(images[1:2]), together[1:2].numpy())
        alone = model.features(images[2:], layers=[0])
        close(alone.pooled, model.features(images).pooled[2:].numpy())
        close(model.attention(images[:1], layers=[0])[0], solve(case).attention[0][:1])


@every_case
def test_attention_is_computed_by_groups_where_that_is_less(case: str) -> None:
    model, _ = build(case)
    config = model.config
    by_groups: set[bool] = set()
    for layer, block in enumerate(model.encoder.blocks):
        attention = block.attention
        assert isinstance(attention, SelfAttention)
        if sparse(attention) and not config.position.startswith("relative"):
            groups = pattern_groups(
                attention.pattern, config.grid_at(layer), config.prefix, torch.device("cpu")
            )
            by_groups.add(groups is not None)
    # Of axial attention, rows or columns may be grouped alone.
    assert (True in by_groups) == (case in GROUPED)


def test_one_layer_of_several() -> None:
    model, images = build("axial")
    expected = solve("axial")
    attention = model.attention(images, layers=[1])
    assert list(attention) == [1]
    close(attention[1], expected.attention[1])
    features = model.features(images, layers=[2, 0])
    assert sorted(features.layers) == [0, 2]
    close(features.layers[2].tokens, expected.layers[2])
    assert model.attention(images, layers=[]) == {}
    assert model.features(images).layers == {}


def test_layers_count_from_the_end_too() -> None:
    model, images = build("axial")
    attention = model.attention(images, layers=[-1, 2])
    assert sorted(attention) == [-1, 2]
    close(attention[-1], solve("axial").attention[2])
    assert torch.equal(attention[2], attention[-1])
    close(model.features(images, layers=[-3]).layers[-3].tokens, solve("axial").layers[0])


def test_looking_inside_leaves_no_trace() -> None:
    model, images = build("registers")
    before = model(images)
    hooks = [module._forward_hooks for module in model.modules()]
    model.features(images, layers=[0, 1])
    model.attention(images)
    assert not any(hooks)
    assert torch.equal(model(images), before)


def values_of(field: str) -> set[Any]:
    return {getattr(config, field) for config in CASES.values()}


def test_cases_use_every_value_of_every_choice() -> None:
    choices = {
        field.name: set(get_args(field.type))
        for field in fields(ViTConfig)
        if get_origin(field.type) is Literal and field.name not in ELSEWHERE
    }
    choices |= {
        "stem": {"patch", "resnet", "conv", "shifted"},
        "position": {"none", "learned1d", "learned2d", "relative", "sincos2d", "rope"}
        | {"conditional", "relative_bias"},
        "attention": {"full", "lsa", "sliding", "axial", "sparse", "mean"},
    }
    for name, values in choices.items():
        assert values_of(name) >= values, name
    assert choices["stem"] <= set(STEMS)
    assert choices["position"] <= set(POSITIONS)
    assert choices["attention"] <= set(ATTENTIONS)


def test_cases_change_every_setting() -> None:
    for field in fields(ViTConfig):
        if field.name in ELSEWHERE:
            continue
        values = values_of(field.name)
        other = values - {field.default}
        assert other if field.default is not MISSING else len(values) > 1, field.name


def test_tokens_of_the_paper() -> None:
    config = ViTConfig(width=768, depth=1, heads=12, mlp_width=8, patch_size=16, classes=0)
    model = VisionTransformer(config).eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        patches = model.stem(images).flatten(1, 2)
        assert patches.shape == (1, 196, 768)
        assert model.features(images).tokens.shape == (1, 197, 768)
    assert config.tokens == 197
