"""Each image of an epoch in one process, for any number of them."""

from dataclasses import dataclass

import pytest
import torch

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.order import Order
from vitlab.data.plan import plan_batch
from vitlab.machine.world import Alone
from vitlab.training.batch_pieces import rows_of
from vitlab.training.config import TrainConfig

IMAGES = 77


@dataclass
class Rank(Alone):
    """One of several processes, which are not there."""

    rank: int
    size: int


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(batch_size=11),
        TrainConfig(batch_size=7),
        TrainConfig(batch_size=22, accumulate=2),
        TrainConfig(batch_size=24, shards=12),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_image_of_an_epoch_is_seen_once(config: TrainConfig, size: int) -> None:
    order = Order(IMAGES, batch_size=config.batch_size, repeats=1, seed=3)
    augment = AugmentConfig(mixup=0.8)  # partners are read too, but are not images of the process
    seen: dict[int, list[int]] = {0: [], 1: []}
    for step in range(2 * IMAGES // config.batch_size + 1):
        batch: list[int] = []
        for rank in range(size):
            plan = plan_batch(order, augment, 3, step, rows_of(config, Rank(rank, size)))
            for part in plan.parts:
                rows = part.read if part.kept is None else part.read[part.kept]
                batch += rows.tolist()
                for row in rows.tolist():
                    seen.setdefault(int(plan.epoch[row]), []).append(int(plan.index[row]))
        assert sorted(batch) == list(range(config.batch_size)), "rows of a batch"
    every = list(range(IMAGES))
    assert sorted(seen[0]) == every
    assert sorted(seen[1]) == every
    assert seen[0] != seen[1]
    assert torch.tensor(seen[0]).unique().numel() == IMAGES
