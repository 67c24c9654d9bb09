"""Hidden and corrupted patches, and their mean colours, against plain definitions."""

import numpy as np
import pytest
import torch

from vitlab.nn.masking import (
    colour_classes,
    colours_of,
    draw_corruption,
    hidden_count,
    put_back,
    random_order,
    take,
)

B, N, V, D = 3, 11, 4, 5
CPU = torch.device("cpu")


def test_orders_are_shuffled_image_by_image() -> None:
    torch.manual_seed(0)
    order = random_order(B, N, CPU)
    assert [sorted(row) for row in order.tolist()] == [list(range(N))] * B
    assert len({tuple(row) for row in order.tolist()}) == B


def test_visible_rows_come_back_to_their_places() -> None:
    torch.manual_seed(0)
    x, filler = torch.randn(B, N, D).double(), torch.randn(D).double()
    order = random_order(B, N, CPU)
    back = put_back(take(x, order[:, :V]), filler, order)
    for image in range(B):
        for place in range(N):
            seen = place in order[image, :V].tolist()
            assert torch.equal(back[image, place], x[image, place] if seen else filler)


@pytest.mark.parametrize(
    ("patches", "share", "count"), [(64, 0.75, 48), (64, 0.5, 32), (7, 0.01, 1), (7, 0.99, 6)]
)
def test_some_patches_are_hidden_and_some_are_not(patches: int, share: float, count: int) -> None:
    assert hidden_count(patches, share) == count


def test_half_of_the_patches_is_corrupted_in_three_ways() -> None:
    torch.manual_seed(0)
    images, patches = 500, 40
    found = draw_corruption(images, patches, share=0.5, masked=0.8, swapped=0.1, device=CPU)
    own = torch.arange(patches).expand(images, -1)
    assert found.chosen.shape == (images, 20)
    assert all(len(set(row)) == 20 for row in found.chosen.tolist())
    corrupted = torch.zeros(images, patches, dtype=torch.bool).scatter(1, found.chosen, True)
    moved = found.source != own
    assert not (found.masked & moved).any()
    assert not ((found.masked | moved) & ~corrupted).any()
    # 10,000 draws: a standard error is 0.004 of 0.8, 0.003 of 0.1.
    assert float(found.masked[corrupted].float().mean()) == pytest.approx(0.8, abs=0.016)
    assert float(moved[corrupted].float().mean()) == pytest.approx(0.1, abs=0.012)
    # Any other patch stands there, and each place is corrupted as often as others.
    assert len(set(((found.source - own) % patches)[moved].tolist())) == patches - 1
    assert corrupted.float().mean(dim=0).sub(0.5).abs().max() < 0.1


def test_the_corrupted_embeddings_are_those_that_were_drawn() -> None:
    torch.manual_seed(1)
    x, mask = torch.randn(B, N, D).double(), torch.randn(D).double()
    found = draw_corruption(B, N, share=0.7, masked=0.3, swapped=0.4, device=CPU)
    corrupted = found.apply(x, mask)
    kinds = set()
    for image in range(B):
        for place in range(N):
            source = int(found.source[image, place])
            masked = bool(found.masked[image, place])
            wanted = mask if masked else x[image, source]
            assert torch.equal(corrupted[image, place], wanted)
            chosen = place in found.chosen[image].tolist()
            kinds.add((chosen, masked, source != place))
    assert kinds == {
        *((False, False, False), (True, True, False), (True, False, True), (True, False, False)),
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_colours_have_three_bits_a_channel(channels: int) -> None:
    ph, pw, rows, columns = 2, 3, 5, 7
    random = np.random.default_rng(0)
    pixels = random.random((2, channels, rows * ph, columns * pw)) ** random.random()
    pixels[0, :, :ph, :pw], pixels[0, :, :ph, pw : 2 * pw] = 0.0, 1.0
    found = colour_classes(torch.from_numpy(pixels), (ph, pw))
    edges = np.arange(1, 8) / 8
    wanted = np.zeros((2, rows * columns), dtype=np.int64)
    for image in range(2):
        for row in range(rows):
            for column in range(columns):
                patch = pixels[image, :, row * ph : (row + 1) * ph, column * pw : (column + 1) * pw]
                number = 0
                for mean in patch.mean(axis=(1, 2)):
                    number = 8 * number + int(np.digitize(mean, edges))
                wanted[image, row * columns + column] = number
    assert (found.numpy() == wanted).all()
    assert (int(found[0, 0]), int(found[0, 1])) == (0, 8**channels - 1)
    # The colour of a class is within half a level of every mean that is in it.
    means = pixels.reshape(2, channels, rows, ph, columns, pw).mean(axis=(3, 5))
    shown = colours_of(found, channels).numpy().reshape(2, rows, columns, channels)
    assert np.abs(np.moveaxis(shown, -1, 1) - means).max() <= 1 / 16 + 1e-12
