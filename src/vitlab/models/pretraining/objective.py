"""What every objective without labels is to the trainer: a model whose output is its loss."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from vitlab.models.vit import VisionTransformer


class Told(NamedTuple):
    """What a model tells of hidden patches, image by image."""

    loss: Float[Tensor, " B"]
    told: Float[Tensor, " B"]
    """How much of what was asked was told."""
    asked: Float[Tensor, " B"]


class Objective(nn.Module, ABC):
    """A Vision Transformer and what it learns by; hidden patches are drawn by torch's generator."""

    name: ClassVar[str]
    score: ClassVar[str]
    """What the told part of what was asked is called."""

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        self.vit = vit
        self.config = vit.config

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
        """The loss of each image: the mean over its hidden patches, of which all have as many."""
        return self.tell(images).loss

    @abstractmethod
    def tell(self, images: Float[Tensor, "B C H W"]) -> Told:
        """The loss, and how much was told."""

    @abstractmethod
    def show(self, images: Float[Tensor, "B C H W"]) -> dict[str, Float[Tensor, "B C H W"]]:
        """Pictures in the values of the images: `seen` by the model, and `told` by it."""
