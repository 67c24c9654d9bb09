"""Held-out parts of multi-label and regression data hold their share of everything."""

import torch

from vitlab.data.images import ArraySet
from vitlab.data.split import hold_out, strata


def noise(count: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, 1, 8, 8), generator=draw, dtype=torch.uint8)


def test_rare_labels_are_held_out_in_proportion() -> None:
    marks = torch.zeros(200, 3, dtype=torch.bool)
    marks[:100, 0] = marks[:20, 1] = marks[:10, 2] = True
    assert strata(marks).tolist() == [2] * 10 + [1] * 10 + [0] * 80 + [3] * 100
    train, held = hold_out(ArraySet(images=noise(200), labels=marks), share=0.2, seed=0)
    assert held.labels.sum(dim=0).tolist() == [20, 4, 2]
    assert train.labels.sum(dim=0).tolist() == [80, 16, 8]


def test_values_are_held_out_evenly_over_their_range() -> None:
    values = torch.linspace(0, 1, 300)[torch.randperm(300)][:, None] ** 3
    _, held = hold_out(ArraySet(images=noise(300), labels=values), share=0.1, seed=0)
    tenths = strata(values)
    places = {tuple(image.flatten().tolist()): i for i, image in enumerate(noise(300))}
    found = [int(tenths[places[tuple(image.flatten().tolist())]]) for image in held.images]
    assert sorted(found) == sorted(list(range(10)) * 3)


def test_few_values_have_fewer_ranges() -> None:
    assert strata(torch.tensor([[3.0], [1.0], [2.0]])).tolist() == [0, 0, 0]
    assert strata(torch.arange(25.0)[:, None]).tolist() == [0] * 13 + [1] * 12
