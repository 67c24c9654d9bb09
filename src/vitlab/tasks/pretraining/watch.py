"""What a run without labels is watched by: its loss, and how much it tells of hidden patches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from vitlab.data.random import seed_for
from vitlab.evaluate.classify import Batches
from vitlab.models.pretraining.mae import MaskedAutoencoder
from vitlab.models.pretraining.masked_patch import MaskedPatch
from vitlab.models.pretraining.objective import Objective
from vitlab.tasks.aim import Aim
from vitlab.train.config import TrainConfig
from vitlab.train.loop import Goal
from vitlab.train.pretraining import mean_loss

SCORES = {kind.name: kind.score for kind in (MaskedPatch, MaskedAutoencoder)}


def pretraining_aim(config: TrainConfig) -> Aim:
    """The aim of a run that needs no labels."""
    assert config.objective is not None
    return Aim(
        goal=Goal(loss=mean_loss, chosen_by=SCORES[config.objective]),
        watch=lambda batches: HiddenWatch(batches=batches).run,
    )


def hide_alike() -> None:
    """Let the patches that are hidden from now on be the same each time."""
    torch.manual_seed(seed_for(0, "hidden patches"))


@dataclass(frozen=True, kw_only=True)
class HiddenWatch:
    """Loss and score, with the same patches hidden each time."""

    batches: Callable[[], Batches]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` and the score of the objective."""
        assert isinstance(model, Objective)
        hide_alike()
        model.eval()
        images, loss, told, asked = 0, 0.0, 0.0, 0.0
        with torch.inference_mode():
            for pixels, _, _ in self.batches():
                found = model.tell(pixels)
                images += len(pixels)
                loss += float(found.loss.cpu().double().sum())
                told += float(found.told.cpu().double().sum())
                asked += float(found.asked.cpu().double().sum())
        yield "loss", loss / max(images, 1)
        yield model.score, told / asked if asked else 0.0
