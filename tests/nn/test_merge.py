"""Which tokens go together, and what becomes of them."""

import torch

from reference.merging import Token, merge
from vitlab.machine.device import plain_products
from vitlab.nn.merge import Sized, match, proportional

# A different prime for every axis: no transposed or broadcast mistake can keep the shape.
B, A, P, K, D = 3, 2, 13, 5, 7
PREFIX = 2
COUNTS = (0, 1, 3, 6, 1000)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def test_merging_again_and_again_matches_the_definition() -> None:
    for count in COUNTS:
        tokens = Sized(draw(B, PREFIX + P, D), PREFIX)
        expected = [
            [Token(vector, (number,)) for number, vector in enumerate(image[PREFIX:].numpy())]
            for image in tokens.tokens
        ]
        for again in range(4):
            keys = draw(B, A, tokens.tokens.shape[1], K, seed=again + 1)
            tokens = tokens.merge(keys, count)
            expected = [
                merge(image, own.mean(dim=0)[PREFIX:].numpy(), count)
                for image, own in zip(expected, keys, strict=True)
            ]
        assert tokens.sizes is not None
        for image, vectors, sizes in zip(expected, tokens.tokens, tokens.sizes, strict=True):
            assert [token.times for token in image] == sizes.tolist()
            for token, vector in zip(image, vectors[PREFIX:], strict=True):
                torch.testing.assert_close(vector, torch.from_numpy(token.vector))
        assert torch.equal(tokens.tokens[:, :PREFIX], draw(B, PREFIX + P, D)[:, :PREFIX])


def test_products_give_the_same_sums() -> None:
    """What graphs for other runtimes have instead, of one matching and of several."""
    for count in COUNTS:
        first = match(draw(B, A, P, K), count)
        second = match(draw(B, A, first.left, K, seed=1), count)
        for found in (first, second, second.after(first)):
            x = draw(B, found.into.shape[1], D, seed=2)
            with plain_products():
                products = found.sums(x)
            torch.testing.assert_close(products, found.sums(x))


def test_it_is_known_what_went_where() -> None:
    tokens = Sized(draw(B, PREFIX + P, D), PREFIX)
    expected = [[Token(v, (n,)) for n, v in enumerate(draw(P, D).numpy())] for _ in range(B)]
    for again in range(3):
        keys = draw(B, A, tokens.tokens.shape[1], K, seed=again)
        tokens = tokens.merge(keys, 2)
        means = keys.mean(dim=1)[:, PREFIX:].numpy()
        expected = [merge(image, own, 2) for image, own in zip(expected, means, strict=True)]
    rows = draw(P, 11, seed=9)
    found = tokens.mean_of(rows)
    for image, own in zip(expected, found, strict=True):
        for token, row in zip(image, own, strict=True):
            torch.testing.assert_close(row, rows[list(token.patches)].mean(dim=0))


def test_equal_patches_go_in_order_whatever_the_batch() -> None:
    keys = torch.ones(1, A, P, K)
    alone = match(keys, 3).into
    assert alone.tolist() == [[3, 3, 4, 3, 5, 3, 6, 0, 7, 1, 8, 2, 9]]
    assert torch.equal(match(keys.expand(B, -1, -1, -1), 3).into, alone.expand(B, -1))


def test_likeness_that_differs_by_rounding_alone_goes_in_order() -> None:
    """Keys of one length at equal angles to each other, which float32 knows to 1e-7 only."""
    keys = torch.eye(P).expand(1, A, P, P) + 1 / P
    noise = 3e-7 * draw(5, 1, A, P, P)
    wanted = match(keys.double(), 3).into
    assert wanted.tolist() == [[3, 3, 4, 3, 5, 3, 6, 0, 7, 1, 8, 2, 9]]
    for disturbed in keys.double() + noise:
        assert torch.equal(match(disturbed.float(), 3).into, wanted)


def test_patches_that_are_no_numbers_go_together_without_failing() -> None:
    keys = draw(B, A, P, K)
    keys[1] = float("nan")
    found = match(keys, 3)
    assert torch.equal(found.into[0], match(keys[:1], 3).into[0])
    assert sorted(set(found.into[1].tolist())) == list(range(P - 3))


def test_a_lone_patch_stays() -> None:
    merged = Sized(draw(B, PREFIX + 1, D), PREFIX).merge(draw(B, A, PREFIX + 1, K), 5)
    assert torch.equal(merged.tokens, draw(B, PREFIX + 1, D))


def test_nothing_is_added_to_scores_before_something_is_merged() -> None:
    assert Sized(draw(B, P, D), 0).all_sizes() is None
    assert proportional(None, 3) is None


def test_a_size_counts_as_so_many_equal_scores() -> None:
    sizes = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64)
    scores = draw(1, 1, P, 3)
    mask = proportional(sizes, P)
    assert mask is not None
    assert mask.shape == (1, 1, P, 3)
    repeated = scores[..., [0, 1, 1, 1, 2, 2]].softmax(dim=-1)
    summed = torch.stack([repeated[..., i].sum(dim=-1) for i in ([0], [1, 2, 3], [4, 5])], dim=-1)
    torch.testing.assert_close((scores + mask).softmax(dim=-1), summed)
