"""Masked patch prediction: arXiv:2010.11929, appendix B.1.2.

Half of the patch embeddings are corrupted; the mean colour of each of these is to be told from the
output at its place.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.models.config import pair
from vitlab.models.pretraining.objective import Objective, Told
from vitlab.models.vit import VisionTransformer
from vitlab.nn.corruption import Corruption, draw_corruption
from vitlab.nn.init import POSITION_STD, init_projection
from vitlab.nn.masking import take
from vitlab.nn.mean_colour import colour_classes, colour_count, colours_of
from vitlab.nn.patch_embed import flatten_patches


class MaskedPatch(Objective):
    """The mean colours of corrupted patches, by a linear layer on their tokens."""

    name = "masked-patch"
    score = "accuracy"
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        mask: float,
        replaced: float,
        swapped: float,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        """`mean` and `std` are what images were normalised with."""
        super().__init__(vit)
        self.mask, self.replaced, self.swapped = mask, replaced, swapped
        self.patch_size = pair(vit.config.patch_size)
        self.mask_token = nn.Parameter(torch.empty(vit.config.width).normal_(std=POSITION_STD))
        self.colours = nn.Linear(vit.config.width, colour_count(vit.config.channels))
        init_projection(self.colours)
        for key, values in (("mean", mean), ("std", std)):
            channels = torch.tensor(values)[:, None, None]
            self.register_buffer(key, channels, persistent=False)

    def tell(self, images: Float[Tensor, "B C H W"]) -> Told:
        patches, corruption = self._draw(images)
        logits = self._logits(patches, corruption)
        wanted = self._classes(images).gather(1, corruption.chosen)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        right = (logits.argmax(dim=-1) == wanted).sum(dim=1)
        return Told(
            loss=losses.unflatten(0, wanted.shape).mean(dim=1),
            told=right.to(losses),
            asked=torch.full_like(losses[: len(images)], wanted.shape[1]),
        )

    def show(self, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """What stands where a patch was corrupted: nothing, another patch, told and true colour."""
        patches, corruption = self._draw(images)
        told = self._logits(patches, corruption).argmax(dim=-1)
        true = self._classes(images).gather(1, corruption.chosen)
        pixels = flatten_patches(images, self.patch_size).flatten(1, 2)
        nothing = torch.zeros_like(pixels[0, 0])
        return {
            "seen": self._join(corruption.apply(pixels, nothing), images),
            "told": self._paint(images, corruption.chosen, told),
            "true": self._paint(images, corruption.chosen, true),
        }

    def _draw(self, images: Tensor) -> tuple[Float[Tensor, "B h w D"], Corruption]:
        patches = self.vit.patches(images)
        count, rows, columns, _ = patches.shape
        corruption = draw_corruption(
            count,
            rows * columns,
            share=self.mask,
            masked=self.replaced,
            swapped=self.swapped,
            device=images.device,
        )
        return patches, corruption

    def _logits(
        self, patches: Float[Tensor, "B h w D"], corruption: Corruption
    ) -> Float[Tensor, "B M colours"]:
        corrupted = corruption.apply(patches.flatten(1, 2), self.mask_token)
        x, grid, positions = self.vit.place(corrupted.unflatten(1, patches.shape[1:3]))
        tokens = self.vit.encoder(x, grid, positions)
        return self.colours(take(tokens[:, self.config.prefix :], corruption.chosen))

    def _classes(self, images: Float[Tensor, "B C H W"]) -> Int[Tensor, "B N"]:
        return colour_classes(images.float() * self.std + self.mean, self.patch_size)

    def _paint(
        self,
        images: Float[Tensor, "B C H W"],
        places: Int[Tensor, "B M"],
        classes: Int[Tensor, "B M"],
    ) -> Float[Tensor, "B C H W"]:
        """The images with these patches in the colours of these classes."""
        colours = colours_of(classes, self.config.channels)
        colours = (colours - self.mean.flatten()) / self.std.flatten()
        side = self.patch_size[0] * self.patch_size[1]
        painted = repeat(colours, "b m c -> b m (c p)", p=side)
        pixels = flatten_patches(images, self.patch_size).flatten(1, 2)
        index = places[..., None].expand_as(painted)
        return self._join(pixels.scatter(1, index, painted.to(pixels)), images)

    def _join(
        self, pixels: Float[Tensor, "B N F"], images: Float[Tensor, "B C H W"]
    ) -> Float[Tensor, "B C H W"]:
        return join_patches(pixels, self.patch_size, images.shape[2] // self.patch_size[0])


def join_patches(
    pixels: Float[Tensor, "B N F"], patch_size: tuple[int, int], rows: int
) -> Float[Tensor, "B C H W"]:
    """Images from flattened patches."""
    ph, pw = patch_size
    return rearrange(pixels, "b (h w) (c ph pw) -> b c (h ph) (w pw)", h=rows, ph=ph, pw=pw)
