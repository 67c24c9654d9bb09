"""Position embeddings compared: cosines by their definition, tables as the model adds them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from models.vit_cases import BASE, CASES
from reference.random_weights import randomise
from vitlab import VisionTransformer, create_model
from vitlab.errors import Unsupported
from vitlab.explain.weights import bias_tables, cosine_maps, offset_tables, position_tables
from vitlab.nn.pos_embed import relative_scores


def build(name: str) -> VisionTransformer:
    model = VisionTransformer(CASES[name]).double().eval()
    randomise(model)
    return model


def test_cosines_match_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    found = cosine_maps(table)
    assert found.shape == (3, 5, 3, 5)
    flat = table.reshape(15, 7).numpy()
    for (i, j, k, m), cosine in np.ndenumerate(found.numpy()):
        a, b = flat[5 * i + j], flat[5 * k + m]
        expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        np.testing.assert_allclose(cosine, expected, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        *("paper", "gap", "prefix_all", "prefix_none", "learned2d", "sincos2d_grid"),
        *("every_layer", "learned2d_every", "shared_layers"),
    ],
)
def test_tables_are_what_is_added_to_the_patches(name: str) -> None:
    model = build(name)
    tables = position_tables(model)
    assert len(tables) == (2 if model.config.position_at == "every_layer" else 1)
    tokens = torch.zeros(1, model.config.tokens, model.config.width, dtype=torch.float64)
    for table, position in zip(tables, model.positions, strict=True):
        added = model._table(position, model.config.grid, tokens)[model.config.prefix :]
        assert table.shape == (*model.config.grid, model.config.width)
        torch.testing.assert_close(table.flatten(0, 1), added.detach())


def test_offsets_of_relative_positions_are_the_tables_of_the_layers() -> None:
    model = build("relative_registers")
    tables = offset_tables(model)
    patches = model.config.grid[0] * model.config.grid[1]
    assert [table.shape for table in tables] == [(2 * patches - 1, 5)] * 2
    # The row that a query uses for the key two places behind it, as documented.
    block = model.encoder.blocks[0].attention
    q = torch.randn(1, 3, model.config.tokens, 5, dtype=torch.float64)
    scores: Tensor = relative_scores(
        q, block.offsets, model.config.grid, model.config.prefix, block.scale
    )
    query, key = model.config.prefix + 4, model.config.prefix + 6
    row = tables[0][len(tables[0]) // 2 - 2]
    torch.testing.assert_close(scores[0, :, query, key].detach(), q[0, :, query] @ row / np.sqrt(5))
    assert offset_tables(build("paper")) == []


def test_biases_of_heads_are_the_tables_of_the_layers() -> None:
    model = build("pooled_relative_bias")  # 6 x 10 patches, then 3 x 5
    tables = bias_tables(model)
    assert [table.shape for table in tables] == [(3, 11, 19), (3, 5, 9)]
    # What the query at row 2, column 1 adds for the key at row 0, column 4.
    added = model.encoder.blocks[1].attention.offset_bias((3, 5), 0).detach()
    torch.testing.assert_close(added[:, 2 * 5 + 1, 4], tables[1][:, 2 - 2, 4 + 3])
    assert bias_tables(build("relative")) == []
    assert offset_tables(model) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rope", "positions: rotary positions turn queries and keys by fixed angles"),
        ("conditional", "positions: conditional positions depend on the tokens"),
        ("no_position", "positions: the model has no positions"),
        ("relative", "positions: position 'relative' adds no table to the tokens"),
    ],
)
def test_a_model_without_a_table_says_so(name: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        position_tables(build(name))


def test_a_convolutional_network_says_so() -> None:
    model = create_model("cnn_tutorial")
    with pytest.raises(Unsupported, match="positions: a TutorialCNN has no position embeddings"):
        position_tables(model)
    assert offset_tables(model) == []


def test_a_square_grid_of_the_original() -> None:
    model = VisionTransformer(replace(BASE, image_size=(12, 8)))
    assert position_tables(model)[0].shape == (4, 4, 12)
