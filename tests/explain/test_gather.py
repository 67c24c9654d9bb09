"""What is gathered in one pass equals what the definitions say, for every kind of model."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.vit_cases import CASES
from reference.random_weights import randomise
from reference.vit import reference_vit
from vitlab import VisionTransformer, create_model
from vitlab.explain.statistics import Gathered, Gatherer, batch_size_for, stacked
from vitlab.explain.trace import Visit, visiting

# float64 on both sides, through two layers.
TOLERANCE: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-9}
NAMES = (
    *("paper", "gap", "registers", "post_norm", "every_layer", "map_gap"),
    *("lsa_gap_registers", "sliding_groups", "axial_post", "sparse_even"),
    *("relative_registers", "rope_registers", "learned2d_shared", "sincos2d"),
    *("hybrid_eps", "conv", "shifted_lsa", "fc_norm_mean"),
    *("relative_bias_lsa", "conditional_every", "pooled", "pooled_axial", "pooled_relative"),
)


def build(name: str) -> VisionTransformer:
    model = VisionTransformer(CASES[name]).double().eval()
    randomise(model)
    return model


def draw_images(model: VisionTransformer, count: int) -> Tensor:
    height, width = np.broadcast_to(model.config.image_size, 2).tolist()
    generator = torch.Generator().manual_seed(1)
    shape = (count, model.config.channels, height, width)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def entering(model: VisionTransformer, images: Tensor) -> Tensor:
    """The tokens that the first block is given."""
    given: list[Tensor] = []
    hook = model.encoder.blocks[0].register_forward_pre_hook(lambda _, x: given.append(x[0]))
    model(images)
    hook.remove()
    return given[0]


def gather(model: Any, images: Tensor, **wanted: Any) -> Gathered:
    found = Gathered()
    for batch in images.split(2):
        with torch.inference_mode():
            Gatherer(model=model, **wanted).see(batch, found)
    return found


def distance(weights: Any, grid: tuple[int, int], size: tuple[int, int], prefix: int) -> Any:
    """Of one head, written once more, with the places as complex numbers."""
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    places = columns * size[1] / grid[1] + 1j * rows * size[0] / grid[0]
    among = weights[prefix:, prefix:]
    among = among / among.sum(axis=1, keepdims=True)
    return (among * np.abs(places[:, None] - places)).sum(axis=1).mean()


@pytest.mark.parametrize("name", NAMES)
def test_everything_matches_the_definitions(name: str) -> None:
    model = build(name)
    images = draw_images(model, 3)
    found = gather(
        model, images, attention=True, means=True, pooled=True, pictures=frozenset({0, 2})
    )
    expected = reference_vit(model.state_dict(), asdict(model.config))(images)
    prefix, size = model.config.prefix, tuple(images.shape[2:])
    for layer, looks in found.attention.items():
        weights, grid = expected.attention[layer], expected.grids[layer]
        assert (looks.grid, looks.tokens) == (grid, weights.shape[-1])
        distances = [[distance(w, grid, size, prefix) for w in heads] for heads in weights]
        np.testing.assert_allclose(torch.cat(looks.distance), distances, **TOLERANCE)
        logs = np.log(np.where(weights > 0, weights, 1.0))
        entropy = -(weights * logs).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(torch.cat(looks.entropy), entropy, **TOLERANCE)
        share = weights[:, :, prefix:, :prefix].sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(torch.cat(looks.prefix_share), share, **TOLERANCE)
    assert sorted(found.attention) == list(range(model.config.depth))
    means = [tokens[:, prefix:].mean(axis=1) for tokens in expected.layers]
    np.testing.assert_allclose(stacked(found.means)[1:], means, **TOLERANCE)
    # The last two are kept in float32.
    np.testing.assert_allclose(torch.cat(found.pooled), expected.pooled, atol=1e-5)
    patches = expected.tokens[::2, prefix:].reshape(2, *expected.grids[-1], -1)
    np.testing.assert_allclose(torch.cat(found.patches), patches, atol=1e-5)
    assert torch.equal(torch.cat(found.pictures), images[::2])
    assert found.shown == [0, 2]


def test_what_enters_the_first_block() -> None:
    model = build("registers")
    images = draw_images(model, 2)
    found = gather(model, images, means=True)
    tokens = entering(model, images)
    np.testing.assert_allclose(found.means[0][0], tokens[:, 3:].mean(dim=1).detach(), **TOLERANCE)


def test_a_block_of_a_smaller_grid_is_measured_on_it() -> None:
    model = build("pooled")  # 6 x 10 patches of 3 x 2 pixels, then 3 x 5
    found = gather(
        model, draw_images(model, 2), attention=True, means=True, pictures=frozenset({1})
    )
    assert [found.attention[layer].grid for layer in (0, 1)] == [(6, 10), (3, 5)]
    assert [found.attention[layer].tokens for layer in (0, 1)] == [61, 16]
    assert stacked(found.means).shape == (3, 2, 12)
    assert found.patches[0].shape == (1, 3, 5, 12)


def test_a_convolutional_network_has_pooled_features_alone() -> None:
    model = create_model("cnn_tutorial").eval()
    wanted = {"attention": True, "means": True, "pictures": frozenset({1})}
    found = gather(model, torch.zeros(3, 3, 32, 32), pooled=True, **wanted)
    assert [len(part) for part in found.pooled] == [2, 1]
    assert [found.attention, found.means, found.patches] == [{}, {}, []]
    assert batch_size_for(model) == 32


def test_hooks_do_not_outlive_the_visit() -> None:
    model = build("paper")
    seen: list[Visit] = []
    with visiting(model, seen.append):
        model(draw_images(model, 1))
    assert [visit.layer for visit in seen] == [0, 1]
    model(draw_images(model, 1))
    assert len(seen) == 2
    assert seen[1].leaving.shape == (1, 36, 12)


def test_batches_shrink_with_the_square_of_the_tokens() -> None:
    model = build("paper")
    attention = 3 * 36**2
    assert batch_size_for(model) == 32
    assert batch_size_for(model, numbers=5 * attention) == 5
    assert batch_size_for(model, numbers=attention - 1) == 1
