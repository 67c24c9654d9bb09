"""Another size, other channels, another head: what changes, and what must not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from reference.foreign import without_note
from reference.random_weights import randomise
from vitlab.errors import WeightsError
from vitlab.models.config import pair
from vitlab.nn.resize import resize_grid, resize_offsets
from vitlab.weights.adapt import adapt_channels, resize_table


def saved(folder: Path, **changes: Any) -> tuple[vitlab.VisionTransformer, Path]:
    fields: dict[str, Any] = {
        "width": 32,
        "depth": 2,
        "heads": 2,
        "mlp_width": 48,
        "patch_size": 4,
        "image_size": (12, 20),
        "classes": 5,
    }
    model = vitlab.VisionTransformer(vitlab.ViTConfig(**{**fields, **changes})).eval()
    randomise(model)
    path = folder / "a.safetensors"
    vitlab.save_weights(model, path)
    return model, path


@pytest.mark.parametrize("size", [(1, 1), (3, 7), (13, 5), (24, 24), (2, 31)])
def test_zoom_is_scipys(size: tuple[int, int]) -> None:
    scipy = pytest.importorskip("scipy.ndimage")
    torch.manual_seed(0)
    table = torch.randn(7, 11, 3)
    factors = (size[0] / 7, size[1] / 11, 1)
    expected = torch.from_numpy(scipy.zoom(table.numpy(), factors, order=1))
    # Both interpolate in float64 and round once.
    torch.testing.assert_close(resize_grid(table, size, "zoom"), expected, rtol=0, atol=1e-6)


def test_zoom_keeps_the_last_row_where_scipy_rounds_it_away() -> None:
    table = torch.arange(8.0).reshape(8, 1, 1)
    assert resize_grid(table, (26, 1), "zoom")[-1].item() == 7.0


@pytest.mark.parametrize("method", ["zoom", "bicubic"])
def test_resizing_keeps_prefix_and_linear_order(method: Any) -> None:
    rows = torch.linspace(0, 1, 6)[:, None, None].expand(6, 4, 1)
    table = torch.cat([torch.full((2, 1), 9.0), rows.reshape(24, 1)])
    resized = resize_table(table, (6, 4), (11, 3), method)
    assert resized.shape == (2 + 33, 1)
    assert (resized[:2] == 9.0).all()
    grid = resized[2:].reshape(11, 3)
    assert (grid.diff(dim=0) > 0).all()
    torch.testing.assert_close(grid, grid[:, :1].expand(11, 3), rtol=0, atol=1e-6)


def test_half_precision_tables_stay_half() -> None:
    for method in ("zoom", "bicubic"):
        assert resize_grid(torch.ones(2, 2, 3).half(), (3, 5), method).dtype == torch.float16


def test_offsets_keep_their_ends_and_centre() -> None:
    torch.manual_seed(0)
    table = torch.randn(2 * 6 - 1, 3)
    resized = resize_offsets(table, 11)
    assert resized.shape == (21, 3)
    for new, old in ((0, 0), (10, 5), (20, 10)):
        torch.testing.assert_close(resized[new], table[old])


def test_equal_grids_are_not_touched(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    again = vitlab.load_weights(path, image_size=(12, 20))
    assert torch.equal(again.positions[0].table, model.positions[0].table)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "learned2d"},
        {"position": "relative"},
        {"position": "relative_bias", "pool": "mean"},
        {"position": "conditional"},
        {"position": "sincos2d"},
        {"position": "rope"},
        {"registers": 2, "position_prefix": "all"},
        {"position_at": "every_layer"},
    ],
)
def test_adapted_at_load_equals_resized_on_the_fly(changes: dict[str, Any], tmp_path: Path) -> None:
    _, path = saved(tmp_path, **changes)
    adapted = vitlab.load_weights(path, image_size=(20, 28))
    dynamic = vitlab.load_weights(path, dynamic_size=True)
    images = torch.randn(2, 3, 20, 28)
    with torch.no_grad():
        # The same tables reach the same encoder; only the moment of resizing differs.
        torch.testing.assert_close(adapted(images), dynamic(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 7])
def test_equal_channels_keep_their_response(channels: int, tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    adapted = vitlab.load_weights(path, channels=channels)
    grey = torch.randn(2, 1, 12, 20)
    with torch.no_grad():
        expected, found = (
            model(grey.expand(2, 3, 12, 20)),
            adapted(grey.expand(2, channels, 12, 20)),
        )
    # The kernels' sums are equal up to the rounding of float32.
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_channels_sum_repeat_and_return() -> None:
    kernel = torch.randn(5, 3, 2, 2)
    torch.testing.assert_close(adapt_channels(kernel, 1), kernel.sum(dim=1, keepdim=True))
    torch.testing.assert_close(adapt_channels(kernel, 6), torch.cat([kernel, kernel], dim=1) / 2)
    assert torch.equal(adapt_channels(kernel, 3), kernel)
    grey = kernel[:, :1]
    torch.testing.assert_close(adapt_channels(grey, 3), grey.expand(5, 3, 2, 2) / 3)


@pytest.mark.parametrize("changes", [{"patch_norm": "both"}, {"stem": "shifted"}])
def test_channels_that_are_normalised_together_stay(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    _, path = saved(tmp_path, **changes)
    with pytest.raises(WeightsError, match="normalises them together"):
        vitlab.load_weights(path, channels=1)


def test_hybrid_and_convolutional_stems_take_other_channels(tmp_path: Path) -> None:
    for changes in (
        {"stem": "conv"},
        {"stem": "resnet", "resnet_width": 32, "patch_size": 1, "image_size": (16, 24)},
    ):
        _, path = saved(tmp_path, **changes)
        model = vitlab.load_weights(path, channels=5)
        height, width = pair(model.config.image_size)
        assert model(torch.randn(1, 5, height, width)).shape == (1, 5)


def test_heads_new_kept_and_dropped(tmp_path: Path) -> None:
    model, path = saved(tmp_path, head="mlp", representation_size=11)
    images = torch.randn(2, 3, 12, 20)

    kept = vitlab.load_weights(path, classes=5)
    with torch.no_grad():
        assert torch.equal(kept(images), model(images))
    assert not kept.source.zero_head

    new = vitlab.load_weights(path, classes=9)
    assert new.head is not None
    assert new.head.weight.shape == (9, 11)
    assert not new(images).any()
    assert new.source.zero_head
    assert torch.equal(new.pre_logits.weight, model.pre_logits.weight)

    features = vitlab.load_weights(path, classes=0)
    assert features(images).shape == (2, 11)
    plain = vitlab.load_weights(path, classes=9, head="linear")
    assert plain.pre_logits is None
    assert plain.head is not None
    assert plain.head.weight.shape == (9, 32)
    bare = vitlab.load_weights(path, classes=0, head="linear")
    with torch.no_grad():
        torch.testing.assert_close(bare(images), model.features(images).pooled)


def test_google_files_zoom_and_others_are_bicubic(tmp_path: Path) -> None:
    model, path = saved(tmp_path, gelu="tanh", image_size=16)
    vitlab.save_weights(model, tmp_path / "a.npz", format="google")
    vitlab.save_weights(model, tmp_path / "a.pth", format="timm")
    table = model.positions[0].table.detach()
    for name, method in (("a.npz", "zoom"), ("a.pth", "bicubic")):
        loaded = vitlab.load_weights(
            tmp_path / name,
            image_size=(24, 32),
            gelu="tanh",
            **({"heads": 2} if "pth" in name else {}),
        )
        expected = resize_table(table, (4, 4), (6, 8), method)
        assert torch.equal(loaded.positions[0].table, expected)
        assert loaded.config.position_resize == method
    forced = vitlab.load_weights(tmp_path / "a.npz", image_size=(24, 32), resize="bicubic")
    expected = resize_table(table, (4, 4), (6, 8), "bicubic")
    assert torch.equal(forced.positions[0].table, expected)
    assert path.is_file()


def test_preprocessing_follows(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, gelu="tanh", image_size=16)
    path = tmp_path / "ViT-B_16.npz"
    vitlab.save_weights(model, path, format="google")
    adapted = vitlab.load_weights(path, image_size=(24, 32), channels=1).source
    assert adapted.preprocessing.size == (24, 32)
    assert adapted.preprocessing.mean == (0.5,)


def test_a_grid_that_nobody_knows(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, image_size=(12, 28))
    vitlab.save_weights(model, tmp_path / "a.pth", format="timm")
    assert vitlab.load_weights(tmp_path / "a.pth").config.image_size == (12, 28)
    without_note(tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=r"22 rows of 'pos_embed'.*stored_image_size=\(H, W\)"):
        vitlab.load_weights(tmp_path / "a.pth", heads=2)
    with pytest.raises(WeightsError, match="stored_image_size"):
        vitlab.load_weights(tmp_path / "a.pth", heads=2, image_size=(24, 24))
    with pytest.raises(WeightsError, match="does not give the 22 rows"):
        vitlab.load_weights(tmp_path / "a.pth", heads=2, stored_image_size=(12, 24))
    stored = vitlab.load_weights(tmp_path / "a.pth", heads=2, stored_image_size=(12, 28))
    assert stored.config.image_size == (12, 28)
    larger = vitlab.load_weights(
        tmp_path / "a.pth", heads=2, stored_image_size=(12, 28), image_size=(24, 24)
    )
    expected = resize_table(model.positions[0].table, (3, 7), (6, 6), "bicubic")
    assert np.array_equal(larger.positions[0].table.detach(), expected.detach())


def test_a_table_that_may_be_square_is_square(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, image_size=24)
    vitlab.save_weights(model, tmp_path / "a.pth", format="timm")
    without_note(tmp_path / "a.pth")
    wide = vitlab.load_weights(tmp_path / "a.pth", heads=2, image_size=(16, 36))  # as many patches
    expected = resize_table(model.positions[0].table, (6, 6), (4, 9), "bicubic")
    assert np.array_equal(wide.positions[0].table.detach(), expected.detach())
    assert not any("stored_image_size" in note for note in wide.source.assumed)
