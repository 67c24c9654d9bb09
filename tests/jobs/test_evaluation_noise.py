"""What a run's choice between weights is worth."""

import pytest
import torch

from vitlab.jobs.training_run import evaluation_batch
from vitlab.models.variants import configure
from vitlab.training.objective import accuracy_noise


def test_noise_is_the_deviation_over_draws_of_images() -> None:
    """Images of classes that are told right with these chances, drawn again and again."""
    counts, chances = torch.tensor([40, 10, 5]), torch.tensor([0.8, 0.8, 0.8])
    labels = torch.arange(3).repeat_interleave(counts)
    draw = torch.Generator().manual_seed(0)
    right = torch.rand(20_000, len(labels), generator=draw) < chances[labels]
    recalls = torch.stack([right[:, labels == k].double().mean(dim=1) for k in range(3)])
    for balanced, found in ((False, right.double().mean(dim=1)), (True, recalls.mean(dim=0))):
        told = accuracy_noise(labels, balanced=balanced)(0.8)
        assert told == pytest.approx(found.std().item(), rel=0.05)


def test_a_perfect_score_on_few_images_may_be_chance() -> None:
    few, many = (
        accuracy_noise(torch.zeros(images, dtype=torch.long), balanced=False)(1.0)
        for images in (10, 1000)
    )
    assert 0.05 < few < 0.1
    assert 0 < many < 0.002


def test_large_models_judge_fewer_images_at_once() -> None:
    sizes = [evaluation_batch(configure(name)) for name in ("vit_test", "vit_ti16", "vit_b16")]
    assert sizes[:2] == [250, 250]
    assert 64 < sizes[2] < 128  # 197 tokens of 3072 numbers
    assert evaluation_batch(configure("vit_b16", image_size=384)) < 64
    assert evaluation_batch(configure("resnet18_cifar")) == 250
