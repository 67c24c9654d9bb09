"""An exported model where a network of torch is asked for: images in, logits out, no more."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import InputError
from vitlab.inference.classifier import Classifier
from vitlab.inference.deployed_model import DeployedModel
from vitlab.models.registry import create_model
from vitlab.weights.bundle import config_of


class ExportedNet(nn.Module):
    """What a file computes, in whatever runtime."""

    def __init__(self, model: DeployedModel) -> None:
        super().__init__()
        if model.deployed.facts.preprocess_inside:
            raise InputError(
                f"{model.file} takes 8-bit pixels, and what is asked for gives normalised images; "
                f"valid: a file that was exported without --preprocess-inside"
            )
        self._session = model.session()

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        return torch.from_numpy(self._session.logits(images.cpu().numpy()))


def described(model: DeployedModel) -> Classifier:
    """The classifier that was exported, without its weights: what it is, not what it answers."""
    config = config_of(model.deployed.config, str(model.file))
    with torch.device("meta"):
        return Classifier(create_model(config), model.source, merge_tokens=model.merge_tokens)
