"""Self-supervised objectives: models whose output is the training loss."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.models.config import pair
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import Encoder, EncoderBlock
from vitlab.nn.init import POSITION_STD, init_projection
from vitlab.nn.masking import (
    Corruption,
    colour_classes,
    colour_count,
    colours_of,
    draw_corruption,
    hidden_count,
    put_back,
    random_order,
    take,
)
from vitlab.nn.mlp import Mlp
from vitlab.nn.patch_embed import flatten_patches
from vitlab.nn.pos_embed import sincos_table


class PatchPrediction(NamedTuple):
    """Prediction of hidden patches, per image."""

    loss: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]
    """Correctly predicted part of the targets, in the units of `total`."""
    total: Float[Tensor, " B"]


class PretrainingModel(nn.Module, ABC):
    """A Vision Transformer with its objective; hidden patches are drawn by torch's generator."""

    name: ClassVar[str]
    score: ClassVar[str]
    """Name of the score, `correct` / `total`."""

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        self.vit = vit
        self.config = vit.config

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
        """Loss of each image: the mean over its hidden patches; every image hides as many."""
        return self.predict(images).loss

    @abstractmethod
    def predict(self, images: Float[Tensor, "B C H W"]) -> PatchPrediction:
        """Loss and score of each image."""

    @abstractmethod
    def show(self, images: Float[Tensor, "B C H W"]) -> dict[str, Float[Tensor, "B C H W"]]:
        """Images in the input's value range: `seen` by the model, and `predicted`."""


# Masked patch prediction: arXiv:2010.11929, appendix B.1.2.
#
# Half of the patch embeddings are corrupted; the mean colour of each of these is predicted from the
# output at its place.


class MaskedPatch(PretrainingModel):
    """Predict the mean colours of corrupted patches with a linear layer on their tokens."""

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
        """`mean` and `std` are those of the images' normalisation."""
        super().__init__(vit)
        self.mask, self.replaced, self.swapped = mask, replaced, swapped
        self.patch_size = pair(vit.config.patch_size)
        self.mask_token = nn.Parameter(torch.empty(vit.config.width).normal_(std=POSITION_STD))
        self.colours = nn.Linear(vit.config.width, colour_count(vit.config.channels))
        init_projection(self.colours)
        for key, values in (("mean", mean), ("std", std)):
            channels = torch.tensor(values)[:, None, None]
            self.register_buffer(key, channels, persistent=False)

    def predict(self, images: Float[Tensor, "B C H W"]) -> PatchPrediction:
        patches, corruption = self._draw(images)
        logits = self._logits(patches, corruption)
        wanted = self._classes(images).gather(1, corruption.chosen)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        right = (logits.argmax(dim=-1) == wanted).sum(dim=1)
        return PatchPrediction(
            loss=losses.unflatten(0, wanted.shape).mean(dim=1),
            correct=right.to(losses),
            total=torch.full_like(losses[: len(images)], wanted.shape[1]),
        )

    def show(self, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Content of corrupted patches: nothing, another patch, predicted and true colour."""
        patches, corruption = self._draw(images)
        predicted = self._logits(patches, corruption).argmax(dim=-1)
        true = self._classes(images).gather(1, corruption.chosen)
        pixels = flatten_patches(images, self.patch_size).flatten(1, 2)
        nothing = torch.zeros_like(pixels[0, 0])
        return {
            "seen": self._join(corruption.apply(pixels, nothing), images),
            "predicted": self._paint(images, corruption.chosen, predicted),
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
        """Images with these patches painted in the colours of these classes."""
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


# A masked autoencoder, arXiv:2111.06377: most patches are removed, and a small decoder predicts
# them.
#
# The encoder processes only the remaining patches, which makes it cheap.

FLAT = 1e-6
"""Added to the variance of a patch, which is zero for a single colour."""
MLP = 4
"""MLP width of the decoder, as a multiple of its width."""


class MaskedAutoencoder(PretrainingModel):
    """Predict the pixels of removed patches, each normalised by itself, from the visible ones."""

    name = "mae"
    score = "r2"

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        mask: float,
        decoder_width: int,
        decoder_depth: int,
        decoder_heads: int,
    ) -> None:
        super().__init__(vit)
        config = vit.config
        self.mask = mask
        self.patch_size = pair(config.patch_size)
        self.mask_token = nn.Parameter(torch.empty(decoder_width).normal_(std=POSITION_STD))
        self.enter = nn.Linear(config.width, decoder_width)
        self.decoder = _decoder(
            decoder_width,
            depth=decoder_depth,
            heads=decoder_heads,
            prefix=config.prefix,
            norm_eps=config.norm_eps,
        )
        self.pixels = nn.Linear(
            decoder_width, config.channels * self.patch_size[0] * self.patch_size[1]
        )
        init_projection(self.enter)
        init_projection(self.pixels)

    def predict(self, images: Float[Tensor, "B C H W"]) -> PatchPrediction:
        order, visible = self._draw(images)
        hidden = order[:, visible:]
        drawn = self.decode(self.encode(images, order[:, :visible]), order, self._grid(images))
        wanted = take(normalised(self._targets(images)), hidden)
        error = (drawn.float() - wanted).square().mean(dim=2)
        power = wanted.square().mean(dim=2)
        return PatchPrediction(
            loss=error.mean(dim=1),
            correct=(power - error).sum(dim=1),
            total=power.sum(dim=1),
        )

    def show(self, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Visible patches alone, and with predictions in the true mean and contrast."""
        order, visible = self._draw(images)
        drawn = self.decode(self.encode(images, order[:, :visible]), order, self._grid(images))
        pixels = self._targets(images)
        mean, deviation = statistics(pixels)
        hidden = order[:, visible:]
        drawn = drawn * take(deviation, hidden) + take(mean, hidden)
        places = hidden[..., None].expand_as(drawn)
        rows, _ = self._grid(images)
        return {
            name: join_patches(pixels.scatter(1, places, content), self.patch_size, rows)
            for name, content in (("seen", torch.zeros_like(drawn)), ("predicted", drawn))
        }

    def encode(
        self, images: Float[Tensor, "B C H W"], kept: Int[Tensor, "B V"]
    ) -> Float[Tensor, "B T D"]:
        """Encoder output of the prefix tokens and these patches, with their positions."""
        prefix = self.config.prefix
        x, grid, _ = self.vit.place(self.vit.patches(images))
        x = torch.cat([x[:, :prefix], take(x[:, prefix:], kept)], dim=1)
        return self.vit.encoder(x, grid)

    def decode(
        self, tokens: Float[Tensor, "B T D"], order: Int[Tensor, "B N"], grid: tuple[int, int]
    ) -> Float[Tensor, "B M F"]:
        """Pixels of the patches without a token, in the order in which they were hidden."""
        prefix = self.config.prefix
        x = self.enter(tokens)
        places = sincos_table(x.shape[2], grid, grid).to(x.device, x.dtype)
        patches = put_back(x[:, prefix:], self.mask_token, order) + places
        x = self.decoder(torch.cat([x[:, :prefix], patches], dim=1), grid)
        return self.pixels(take(x[:, prefix:], order[:, tokens.shape[1] - prefix :]))

    def _draw(self, images: Tensor) -> tuple[Int[Tensor, "B N"], int]:
        """Random order of the patches of each image, and the number of first ones that are kept."""
        rows, columns = self._grid(images)
        patches = rows * columns
        order = random_order(len(images), patches, images.device)
        return order, patches - hidden_count(patches, self.mask)

    def _grid(self, images: Tensor) -> tuple[int, int]:
        return self.config.grid_for((images.shape[2], images.shape[3]))

    def _targets(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N F"]:
        return flatten_patches(images, self.patch_size).flatten(1, 2)


def statistics(
    pixels: Float[Tensor, "B N F"],
) -> tuple[Float[Tensor, "B N 1"], Float[Tensor, "B N 1"]]:
    """Mean and deviation of each patch."""
    variance, mean = torch.var_mean(pixels, dim=2, correction=0, keepdim=True)
    return mean, (variance + FLAT).sqrt()


def normalised(pixels: Float[Tensor, "B N F"]) -> Float[Tensor, "B N F"]:
    """Each patch minus its mean, divided by its deviation."""
    mean, deviation = statistics(pixels)
    return (pixels - mean) / deviation


def _decoder(width: int, *, depth: int, heads: int, prefix: int, norm_eps: float) -> Encoder:
    blocks = [
        EncoderBlock(
            SelfAttention(width, heads=heads, head_width=width // heads),
            Mlp(width, MLP * width),
            width,
            norm_eps=norm_eps,
        )
        for _ in range(depth)
    ]
    return Encoder(blocks, nn.LayerNorm(width, eps=norm_eps), prefix=prefix)
