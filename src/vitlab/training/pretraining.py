"""Training without labels: the model, its loss and its evaluation, from the settings of a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitlab.data.order import seed_for
from vitlab.errors import ConfigError
from vitlab.evaluation.classification import Batches
from vitlab.evaluation.distributed import computed, inference
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.pretraining import MaskedAutoencoder, MaskedPatch, PretrainingModel
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.attention_variants import sparse
from vitlab.nn.masking import colour_count
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Goal
from vitlab.training.objective import Learning

# Models that cannot be trained with hidden patches, and why.

MOST_COLOURS = 4096
DROPPED = ("none", "learned1d", "learned2d", "sincos2d")
"""Position embeddings that also work if patches are left out."""


def why_not(model: nn.Module, objective: str) -> str | None:
    """Reason why this objective cannot train the model, with valid choices; None: it can."""
    if not isinstance(model, VisionTransformer):
        return f"a {type(model).__name__} has no patches; valid: a vit_… model"
    config = model.config
    if config.stem != "patch":
        return (
            f"with stem {config.stem!r} other tokens have seen the pixels of a hidden patch; "
            f"valid: stem 'patch'"
        )
    if not config.depth:
        return "the model has no encoder blocks; valid: a depth of 1 or more"
    if config.pool_after is not None:
        return (
            f"pool_after {config.pool_after} leaves no token for each patch; valid: pool_after none"
        )
    if config.grid[0] * config.grid[1] < 2:
        return "an image is one patch; valid: two or more, by a larger image or a smaller patch"
    if objective == MaskedPatch.name:
        return _no_colours(config.channels)
    return _not_dropped(model) if objective == MaskedAutoencoder.name else None


def _no_colours(channels: int) -> str | None:
    if colour_count(channels) <= MOST_COLOURS:
        return None
    return (
        f"{channels} channels of 3 bits are {colour_count(channels):,} colours; "
        f"valid: up to {MOST_COLOURS:,}, or mae"
    )


def _not_dropped(model: VisionTransformer) -> str | None:
    config = model.config
    if config.position not in DROPPED or config.position_at != "stem":
        return (
            f"position {config.position!r} at {config.position_at!r} needs the whole grid; "
            f"valid: {', '.join(DROPPED)} at 'stem', or masked-patch"
        )
    for block in model.encoder.blocks:
        attention = block.attention
        if not isinstance(attention, SelfAttention) or sparse(attention):
            return (
                f"attention {config.attention!r} needs the whole grid; valid: full, or masked-patch"
            )
    return None


def with_objective(
    model: nn.Module, config: TrainConfig, preprocessing: Preprocessing
) -> PretrainingModel:
    """Wrap a model in its objective; raise if the model cannot be trained by it."""
    assert config.objective is not None
    hindrance = why_not(model, config.objective)
    if hindrance is not None:
        raise ConfigError(f"{config.objective}: {hindrance}")
    assert isinstance(model, VisionTransformer)
    if config.mae is not None:
        return MaskedAutoencoder(
            model,
            mask=config.mae.mask,
            decoder_width=config.mae.decoder_width,
            decoder_depth=config.mae.decoder_depth,
            decoder_heads=config.mae.decoder_heads,
        )
    assert config.masked_patch is not None
    return MaskedPatch(
        model,
        mask=config.masked_patch.mask,
        replaced=config.masked_patch.replaced,
        swapped=config.masked_patch.swapped,
        mean=preprocessing.mean,
        std=preprocessing.std,
    )


def mean_loss(losses: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Mean of the losses that the model itself computes for each image; targets are not used."""
    return losses.float().mean()


# Evaluation during a run without labels: its loss, and the score of its objective.

SCORES = {kind.name: kind.score for kind in (MaskedPatch, MaskedAutoencoder)}


def pretraining_learning(config: TrainConfig) -> Learning:
    """Loss and metrics of a run without labels."""
    assert config.objective is not None
    return Learning(
        goal=Goal(loss=mean_loss, chosen_by=SCORES[config.objective]),
        evaluator=lambda batches: HiddenWatch(batches=batches).run,
    )


def hide_alike(first: int = 0) -> None:
    """Seed torch so that each evaluation hides the same patches in images from `first` on."""
    torch.manual_seed(seed_for(0, "hidden patches", *([first] if first else [])))


@dataclass(frozen=True, kw_only=True)
class HiddenWatch:
    """Loss and score, with the same patches hidden each time."""

    batches: Callable[[], Batches]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` and the score of the objective."""
        assert isinstance(model, PretrainingModel)
        model.eval()

        def compute(batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
            pixels, _, index = batch
            hide_alike(int(index[0]))
            with inference(model):
                found = model.predict(pixels)
            return found.loss.cpu(), found.correct.cpu(), found.total.cpu(), index.cpu()

        images, loss, right, total = 0, 0.0, 0.0, 0.0
        for losses, correct, hidden, index in computed(self.batches(), compute):
            images += len(index)
            loss += float(losses.double().sum())
            right += float(correct.double().sum())
            total += float(hidden.double().sum())
        yield "loss", loss / max(images, 1)
        yield model.score, right / total if total else 0.0
