"""The Vision Transformer, arXiv:2010.11929: pixels, patches, tokens, encoder, head."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import ConfigError, InputError
from vitlab.models.config import ViTConfig, pair
from vitlab.models.parts import build_encoder, build_pool, build_positions, last_norm
from vitlab.nn.init import POSITION_STD, init_projection, init_zero
from vitlab.nn.pos_embed import Added, Conditional, add_position
from vitlab.registry import STEMS

Grid = tuple[int, int]


@dataclass(frozen=True)
class LayerTokens:
    """The tokens of one layer, split into class token, registers and patches."""

    tokens: Float[Tensor, "B N D"]
    cls: Float[Tensor, "B D"] | None
    registers: Float[Tensor, "B R D"]
    patches: Float[Tensor, "B h w D"]


@dataclass(frozen=True)
class Features(LayerTokens):
    """Tokens after the last LayerNorm, the head's input, and the requested layers."""

    pooled: Float[Tensor, "B D"]
    layers: dict[int, LayerTokens]
    """Output of each requested block, before the last LayerNorm."""


class VisionTransformer(nn.Module):
    """Every member of the family, as its `config` describes it."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.source: Any = None
        """Origin of the weights: a `vitlab.weights.source.WeightSource`, or None."""
        stem: Callable[[ViTConfig], nn.Module] = STEMS[config.stem]
        self.stem = stem(config)
        self.cls_token = _tokens(config, int(config.class_token), std=0.0)
        self.registers = _tokens(config, config.registers, std=POSITION_STD)
        self.positions = build_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = build_encoder(config)
        self.pool = build_pool(config)
        pooled_norm = config.norm_at == "pooled"
        self.pooled_norm = last_norm(config) if pooled_norm else nn.Identity()
        self.pre_logits = _pre_logits(config)
        self.head = _head(config)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        x, grid, positions = self.embed(images)
        return self.classify(self.pool_tokens(self.encoder(x, grid, positions)))

    def logits(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """Same as `forward`, but the last block computes no token that the head does not read."""
        x, grid, positions = self.embed(images)
        return self.classify(self.pool_tokens(self.encoder(x, grid, positions, self.read)))

    def features(self, images: Float[Tensor, "B C H W"], layers: Iterable[int] = ()) -> Features:
        """Features of the last layer, and the output of each block in `layers`."""
        wanted = self._layer_numbers(layers)
        x, grid, positions = self.embed(images)
        kept = {}
        for layer in range(self.config.depth):
            x = self.encoder.step(x, grid, positions, layer)
            if layer in wanted:
                split = self._split(x, self.encoder.grid_at(layer, grid))
                kept.update(dict.fromkeys(wanted[layer], split))
        last = self._split(self.encoder.norm(x), self.encoder.grid_at(self.config.depth - 1, grid))
        return Features(**vars(last), pooled=self.pool_tokens(last.tokens), layers=kept)

    def layer(self, images: Float[Tensor, "B C H W"], number: int) -> LayerTokens:
        """Output of one block, before the last LayerNorm; later blocks are not computed."""
        last = layer_number(number, self.config.depth)
        x, grid, positions = self.embed(images)
        for layer in range(last + 1):
            x = self.encoder.step(x, grid, positions, layer)
        return self._split(x, self.encoder.grid_at(last, grid))

    def attention(
        self, images: Float[Tensor, "B C H W"], layers: Iterable[int] | None = None
    ) -> dict[int, Float[Tensor, "B A _ _"]]:
        """Attention weights of each block in `layers` (None: all), zero where masked."""
        wanted = self._layer_numbers(range(self.config.depth) if layers is None else layers)
        x, grid, positions = self.embed(images)
        weights = {}
        for layer in range(max(wanted, default=-1) + 1):
            if layer in wanted:
                found = self.encoder.attention_weights(x, grid, positions, layer)
                weights.update(dict.fromkeys(wanted[layer], found))
            x = self.encoder.step(x, grid, positions, layer)
        return weights

    def embed(self, images: Tensor) -> tuple[Float[Tensor, "B N D"], Grid, list[Added]]:
        """Tokens that enter the encoder, their grid, and the positions for its blocks."""
        return self.place(self.patches(images))

    def patches(self, images: Tensor) -> Float[Tensor, "B h w D"]:
        """Embedding of each patch, without position."""
        self._check(images)
        return self.stem(images)

    def place(
        self, x: Float[Tensor, "B h w D"]
    ) -> tuple[Float[Tensor, "B N D"], Grid, list[Added]]:
        """Result of `embed`, from the embeddings of the patches."""
        grid = (x.shape[1], x.shape[2])
        prefix = [
            token.expand(x.shape[0], -1, -1)
            for token in (self.cls_token, self.registers)
            if token is not None
        ]
        x = torch.cat([*prefix, x.flatten(1, 2)], dim=1) if prefix else x.flatten(1, 2)
        positions = [
            position if isinstance(position, Conditional) else self._table(position, grid, x)
            for position in self.positions
        ]
        if self.config.position_at == "stem":
            x, positions = add_position(x, positions[0], grid) if positions else x, []
        elif self.config.position_at == "shared_layers":
            positions = positions * self.config.depth
        return self.dropout(x), grid, positions

    def _table(self, position: nn.Module, grid: Grid, x: Tensor) -> Float[Tensor, "N D"]:
        """A position's table with zeros for the prefix tokens that have no entry."""
        table = position(grid).to(x.device, x.dtype)
        missing = x.shape[1] - len(table)
        if not missing:
            return table
        entries = self.config.prefix - missing
        zeros = table.new_zeros(missing, table.shape[1])
        return torch.cat([table[:entries], zeros, table[entries:]])

    @property
    def read(self) -> int | None:
        """Number of leading tokens of the last block that the head reads; None: all."""
        return 1 if self.config.pool == "cls" else None

    def pool_tokens(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        """Input of the head, from the tokens behind the last LayerNorm."""
        return self.pooled_norm(self.pool(tokens))

    def classify(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B classes"]:
        """Output of the head; without a head, its input."""
        if self.pre_logits is not None:
            pooled = torch.tanh(self.pre_logits(pooled))
        return pooled if self.head is None else self.head(pooled)

    def _split(self, tokens: Float[Tensor, "B N D"], grid: Grid) -> LayerTokens:
        first, prefix = int(self.config.class_token), self.config.prefix
        return LayerTokens(
            tokens=tokens,
            cls=tokens[:, 0] if first else None,
            registers=tokens[:, first:prefix],
            patches=tokens[:, prefix:].unflatten(1, grid),
        )

    def _layer_numbers(self, layers: Iterable[int]) -> dict[int, list[int]]:
        """Index of each requested layer, with the numbers that requested it (-1 is the last)."""
        numbers: dict[int, list[int]] = {}
        for layer in layers:
            numbers.setdefault(layer_number(layer, self.config.depth), []).append(layer)
        return numbers

    def _check(self, images: Tensor) -> None:
        """Raise for images of an unsupported shape, before they give a wrong result."""
        channels, size = self.config.channels, pair(self.config.image_size)
        if images.ndim != 4 or images.shape[1] != channels:
            raise InputError(
                f"images of shape {list(images.shape)}; valid: [batch, {channels}, height, width]"
            )
        if not images.is_floating_point():
            raise InputError(f"images of {images.dtype}; valid: floating point, preprocessed")
        found = (images.shape[2], images.shape[3])
        if found == size:
            return
        if not self.config.dynamic_size:
            raise InputError(
                f"images of {found[0]}x{found[1]} pixels; the model takes {size[0]}x{size[1]} "
                f"(dynamic_size=True accepts other sizes)"
            )
        try:
            self.config.grid_for(found)
        except ConfigError as error:
            raise InputError(str(error).replace("image_size", "images of size")) from None


def logits_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Function that computes `model(images)` with the least work; skips the model's own hooks."""
    ours = type(model).forward is VisionTransformer.forward
    return model.logits if ours and isinstance(model, VisionTransformer) else model


def layer_number(layer: int, depth: int) -> int:
    """Index of the block, from 0; negative numbers count from the last."""
    if not depth:
        raise InputError(f"layer {layer} does not exist: the model has no encoder blocks")
    if not -depth <= layer < depth:
        raise InputError(f"layer {layer} does not exist; valid: {-depth} to {depth - 1}")
    return layer % depth


def _tokens(config: ViTConfig, count: int, *, std: float) -> nn.Parameter | None:
    if not count:
        return None
    return nn.Parameter(torch.empty(1, count, config.width).normal_(std=std))


def _pre_logits(config: ViTConfig) -> nn.Linear | None:
    if config.head == "linear":
        return None
    layer = nn.Linear(config.width, config.representation)
    init_projection(layer)
    return layer


def _head(config: ViTConfig) -> nn.Linear | None:
    if not config.classes:
        return None
    layer = nn.Linear(config.representation, config.classes)
    init_zero(layer)
    return layer
