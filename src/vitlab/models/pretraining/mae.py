"""A masked autoencoder, arXiv:2111.06377: most patches are left out, and drawn by a small decoder.

The encoder sees the other patches alone, which is what makes it cheap.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.models.config import pair
from vitlab.models.pretraining.masked_patch import join_patches
from vitlab.models.pretraining.objective import Objective, Told
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import Encoder, EncoderBlock
from vitlab.nn.init import POSITION_STD, init_projection
from vitlab.nn.masking import hidden_count, put_back, random_order, take
from vitlab.nn.mlp import Mlp
from vitlab.nn.patch_embed import flatten_patches
from vitlab.nn.pos_embed import sincos_table

FLAT = 1e-6
"""Added to the variance of a patch, which may be of one colour."""
MLP = 4
"""Times the decoder's width: its MLP."""


class MaskedAutoencoder(Objective):
    """The pixels of left-out patches, each normalised by itself, from those that were kept."""

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

    def tell(self, images: Float[Tensor, "B C H W"]) -> Told:
        order, visible = self._draw(images)
        hidden = order[:, visible:]
        drawn = self.decode(self.encode(images, order[:, :visible]), order, self._grid(images))
        wanted = take(normalised(self._targets(images)), hidden)
        error = (drawn.float() - wanted).square().mean(dim=2)
        power = wanted.square().mean(dim=2)
        return Told(
            loss=error.mean(dim=1),
            told=(power - error).sum(dim=1),
            asked=power.sum(dim=1),
        )

    def show(self, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """The kept patches, and those with the drawn ones in the mean and contrast of the truth."""
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
            for name, content in (("seen", torch.zeros_like(drawn)), ("told", drawn))
        }

    def encode(
        self, images: Float[Tensor, "B C H W"], kept: Int[Tensor, "B V"]
    ) -> Float[Tensor, "B T D"]:
        """The encoder's output for the prefix tokens and these patches, which know their places."""
        prefix = self.config.prefix
        x, grid, _ = self.vit.place(self.vit.patches(images))
        x = torch.cat([x[:, :prefix], take(x[:, prefix:], kept)], dim=1)
        return self.vit.encoder(x, grid)

    def decode(
        self, tokens: Float[Tensor, "B T D"], order: Int[Tensor, "B N"], grid: tuple[int, int]
    ) -> Float[Tensor, "B M F"]:
        """The pixels of the patches that have no token, in the order in which they were hidden."""
        prefix = self.config.prefix
        x = self.enter(tokens)
        places = sincos_table(x.shape[2], grid, grid).to(x.device, x.dtype)
        patches = put_back(x[:, prefix:], self.mask_token, order) + places
        x = self.decoder(torch.cat([x[:, :prefix], patches], dim=1), grid)
        return self.pixels(take(x[:, prefix:], order[:, tokens.shape[1] - prefix :]))

    def _draw(self, images: Tensor) -> tuple[Int[Tensor, "B N"], int]:
        """The patches of each image in a random order, and how many of the first ones are kept."""
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
    """Each patch less its mean, by its deviation."""
    mean, deviation = statistics(pixels)
    return (pixels - mean) / deviation


def _decoder(width: int, *, depth: int, heads: int, prefix: int, norm_eps: float) -> Encoder:
    blocks = [
        EncoderBlock(
            SelfAttention(
                width, heads=heads, head_width=width // heads, prefix=prefix, norm_eps=norm_eps
            ),
            Mlp(width, MLP * width),
            width,
            norm_eps=norm_eps,
        )
        for _ in range(depth)
    ]
    return Encoder(blocks, nn.LayerNorm(width, eps=norm_eps), prefix=prefix)
