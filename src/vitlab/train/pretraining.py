"""From the settings of a run without labels to the model that it trains."""

from torch import Tensor, nn

from vitlab.errors import ConfigError
from vitlab.models.pretraining.hindrance import why_not
from vitlab.models.pretraining.mae import MaskedAutoencoder
from vitlab.models.pretraining.masked_patch import MaskedPatch
from vitlab.models.pretraining.objective import Objective
from vitlab.models.vit import VisionTransformer
from vitlab.preprocessing import Preprocessing
from vitlab.train.config import TrainConfig


def with_objective(
    model: nn.Module, config: TrainConfig, preprocessing: Preprocessing
) -> Objective:
    """The model and what it learns by; a model that cannot is refused."""
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
    """The loss of a model that tells its own for each image: targets are not asked."""
    return losses.float().mean()
