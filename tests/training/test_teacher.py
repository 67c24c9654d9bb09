"""Distillation against its definition."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.data.loader import Batch
from vitlab.training.loss import cross_entropy
from vitlab.training.teacher import DistillationLoader, Teacher

# A different prime for every axis.
B, C, H, W, K = 2, 3, 5, 7, 11


class Fixed:
    """The same batch at every step."""

    steps_per_epoch = 1.0

    def __init__(self, targets: Tensor) -> None:
        self.broken: dict[Path, str] = {}
        self.closed = False
        self._batch = Batch(torch.randn(B, C, H, W), targets, torch.arange(B))

    def batch(self, step: int) -> Batch:
        return self._batch

    def close(self) -> None:
        self.closed = True


def opinion(images: Tensor) -> Tensor:
    return images.flatten(1)[:, :K].softmax(dim=-1)


def test_the_loss_is_the_mixture_of_both() -> None:
    torch.manual_seed(0)
    labels, logits = torch.tensor([4, 9]), torch.randn(B, K)
    fixed = Fixed(labels)
    taught = DistillationLoader(loader=fixed, teacher=opinion, share=0.3, classes=K)
    batch = taught.batch(0)
    hard = F.cross_entropy(logits, labels)
    soft = -(opinion(batch.images) * logits.log_softmax(-1)).sum(-1).mean()
    found = cross_entropy(logits, batch.targets, 0.0)
    torch.testing.assert_close(found, 0.7 * hard + 0.3 * soft)
    assert taught.steps_per_epoch == 1.0
    taught.close()
    assert fixed.closed


def test_mixed_targets_stay_distributions() -> None:
    mixed = torch.rand(B, K).softmax(dim=-1)
    batch = DistillationLoader(loader=Fixed(mixed), teacher=opinion, share=0.5, classes=K).batch(3)
    torch.testing.assert_close(batch.targets.sum(-1), torch.ones(B))
    torch.testing.assert_close(batch.targets, (mixed + opinion(batch.images)) / 2)


def test_a_teacher_sees_images_as_it_was_trained_to() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return x.flatten(1)[:, :K]

    torch.manual_seed(0)
    pixels = torch.rand(B, C, H, W)
    mine = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))
    order = torch.tensor([3, 1, 0])
    teacher = Teacher(
        model=Spy(),
        size=(H, W),
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
        prepared_with=mine,
        classes=order,
        temperature=2.0,
    )
    mean, std = (torch.tensor(values)[:, None, None] for values in mine)
    found = teacher((pixels - mean) / std)
    expected = (pixels - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor(
        [0.5, 0.6, 0.7]
    )[:, None, None]
    torch.testing.assert_close(seen[0], expected, atol=1e-5, rtol=1e-5)  # float32 there and back
    logits = expected.flatten(1)[:, :K][:, order]
    torch.testing.assert_close(found, (logits / 2).softmax(-1), atol=1e-5, rtol=1e-5)


def test_a_teacher_of_another_size() -> None:
    class Sizes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape == (B, C, 13, 17)
            return torch.zeros(B, K)

    zero, one = (0.0,) * C, (1.0,) * C
    teacher = Teacher(
        model=Sizes(),
        size=(13, 17),
        mean=zero,
        std=one,
        prepared_with=(zero, one),
        classes=torch.arange(K),
    )
    torch.testing.assert_close(teacher(torch.rand(B, C, H, W)), torch.full((B, K), 1 / K))
