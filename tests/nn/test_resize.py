"""Position tables on another grid: definitions entry by entry, SciPy and Pillow."""

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image

from reference.resize import resized, zoom
from vitlab.nn.resize import ResizeMethod, resize_grid, resize_offsets

TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}  # float64, other order of sums
D = 5
SIZES = [
    ((3, 7), (5, 11)),
    ((7, 11), (2, 3)),
    ((5, 3), (2, 13)),
    ((7, 1), (3, 1)),
    ((3, 2), (1, 5)),
    ((5, 7), (3, 1)),
    ((5, 7), (1, 1)),
]

sizes = pytest.mark.parametrize(("old", "new"), SIZES)


def table(grid: tuple[int, int]) -> torch.Tensor:
    return torch.randn(*grid, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@sizes
@pytest.mark.parametrize("method", ["bicubic", "zoom"])
def test_resize_grid(old: tuple[int, int], new: tuple[int, int], method: ResizeMethod) -> None:
    found = resize_grid(table(old), new, method)
    expected = resized(table(old).numpy(), new, method)
    torch.testing.assert_close(found, torch.from_numpy(expected), **TOLERANCE)


@pytest.mark.parametrize(("old", "new"), [pair for pair in SIZES if 1 not in pair[1]])
def test_zoom_is_scipys(old: tuple[int, int], new: tuple[int, int]) -> None:
    """The call of the original code: `zoom(grid, (h2/h, w2/w, 1), order=1)`."""
    factors = (new[0] / old[0], new[1] / old[1], 1)
    expected = scipy.ndimage.zoom(table(old).numpy(), factors, order=1)
    found = resize_grid(table(old), new, "zoom")
    torch.testing.assert_close(found, torch.from_numpy(expected), **TOLERANCE)


@sizes
def test_bicubic_is_pillows(old: tuple[int, int], new: tuple[int, int]) -> None:
    found = resize_grid(table(old), new, "bicubic")
    for d in range(D):
        image = Image.fromarray(table(old)[..., d].numpy().astype(np.float32))
        expected = np.asarray(image.resize((new[1], new[0]), Image.Resampling.BICUBIC))
        # Pillow computes in float32.
        np.testing.assert_allclose(found[..., d].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["bicubic", "zoom"])
def test_the_same_grid_is_the_same_table(method: ResizeMethod) -> None:
    old = table((3, 7))
    assert resize_grid(old, (3, 7), method) is old


@pytest.mark.parametrize("method", ["bicubic", "zoom"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_precision_stays(method: ResizeMethod, dtype: torch.dtype) -> None:
    found = resize_grid(table((3, 7)).to(dtype), (5, 2), method)
    assert found.dtype == dtype
    exact = resize_grid(table((3, 7)).to(dtype).double(), (5, 2), method)
    # Computed in float32 or better: only the last rounding may be coarse.
    torch.testing.assert_close(found, exact.to(dtype), atol=1e-6, rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("method", ["bicubic", "zoom"])
def test_gradients_reach_the_table(method: ResizeMethod) -> None:
    old = table((3, 7)).requires_grad_()
    resize_grid(old, (5, 11), method).sum().backward()
    assert old.grad is not None
    assert (old.grad != 0).all()


@pytest.mark.parametrize("length", [2, 5, 11])
def test_resize_offsets(length: int) -> None:
    """2n - 1 offsets between n positions; the largest offset stays the largest."""
    old = torch.randn(13, D, dtype=torch.float64)  # between 7 positions
    found = resize_offsets(old, length)
    torch.testing.assert_close(found, torch.from_numpy(zoom(old.numpy(), 2 * length - 1)))
    assert resize_offsets(old, 7) is old


def test_offset_zero_stays_offset_zero() -> None:
    old = torch.randn(13, D, dtype=torch.float64)
    for length in (1, 3, 5, 11):
        torch.testing.assert_close(resize_offsets(old, length)[length - 1], old[6])
