"""The Vision Transformer, arXiv:2010.11929: pixels, patches, tokens, encoder, head."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import ConfigError, InputError
from vitlab.models.config import ViTConfig, pair
from vitlab.models.parts import (
    block_norm,
    build_encoder,
    build_head,
    build_pool,
    build_positions,
)
from vitlab.nn.draws import Dropout
from vitlab.nn.init import POSITION_STD, init_projection
from vitlab.nn.pos_embed import Added, Conditional, add_position
from vitlab.registry import STEMS, resolve_entry

T = TypeVar("T")

Grid = tuple[int, int]
Sizes = Sequence[Float[Tensor, "C _ _"]]
"""Images of different sizes."""


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

    pooled: Float[Tensor, "B P"]
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
        self.dropout = Dropout(config.dropout)
        self.embed_norm = block_norm(config) if config.embed_norm else None
        self.encoder = build_encoder(config)
        self.pool = build_pool(config)
        pooled_norm = config.norm_at == "pooled"
        self.pooled_norm = block_norm(config) if pooled_norm else nn.Identity()
        self.pre_logits = _pre_logits(config)
        self.head = build_head(config)

    def forward(self, images: Float[Tensor, "B C H W"] | Sizes) -> Float[Tensor, "B classes"]:
        """Output of the head for each image: logits, or values of a regression.

        Images of different sizes, as a list, need a model with `dynamic_size`.
        """
        if not isinstance(images, Tensor):
            return torch.stack(_in_order(images, self.forward))
        x, grid, positions = self.embed(images)
        return self.classify(self.pool_tokens(self.encoder(x, grid, positions)))

    def logits(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """Same as `forward`, but the last block computes no token that the head does not read."""
        x, grid, positions = self.embed(images)
        return self.classify(self.pool_tokens(self.encoder(x, grid, positions, self.read)))

    @overload
    def features(self, images: Tensor, layers: Iterable[int] = ()) -> Features: ...
    @overload
    def features(self, images: Sizes, layers: Iterable[int] = ()) -> list[Features]: ...
    def features(
        self, images: Float[Tensor, "B C H W"] | Sizes, layers: Iterable[int] = ()
    ) -> Features | list[Features]:
        """Features of the last layer, and the output of each block in `layers`.

        For a list of images of different sizes, a list of features, each of a batch of one.
        """
        if not isinstance(images, Tensor):
            layers = tuple(layers)
            return _in_order(images, lambda batch: _each(self.features(batch, layers)))
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
        x = self.dropout(x)
        return x if self.embed_norm is None else self.embed_norm(x), grid, positions

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
        return {"cls": 1, "cls_dist": 2}.get(self.config.pool)

    def pool_tokens(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B P"]:
        """Input of the head, from the tokens behind the last LayerNorm."""
        return self.pooled_norm(self.pool(tokens))

    def classify(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B classes"]:
        """Output of the head; without a head, its input."""
        return self.represent(pooled) if self.head is None else self.head(self._last(pooled))

    def represent(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B _"]:
        """Output of the model without its last layer, such as the image embedding of a CLIP."""
        if self.config.pool == "cls_dist" and self.config.head == "linear":
            return pooled.unflatten(1, (2, -1)).mean(dim=1)
        return self._last(pooled)

    def _last(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B _"]:
        """Input of the last layer."""
        if self.pre_logits is not None:
            pooled = self.pre_logits(pooled)
            pooled = torch.tanh(pooled) if self.config.head == "mlp" else pooled
        return F.normalize(pooled, dim=1) if self.config.unit_norm else pooled

    # The names of timm and transformers, for code that was written for them.

    @property
    def num_features(self) -> int:
        """Width of the tokens, by timm's name."""
        return self.config.width

    def forward_features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """All tokens after the last LayerNorm."""
        return self.encoder(*self.embed(images))

    def forward_head(
        self, tokens: Float[Tensor, "B N D"], pre_logits: bool = False
    ) -> Float[Tensor, "B _"]:
        """Logits of the tokens of `forward_features`; with `pre_logits`, the pooled tokens."""
        pooled = self.pool_tokens(tokens)
        return pooled if pre_logits else self.classify(pooled)

    def forward_intermediates(
        self,
        images: Float[Tensor, "B C H W"],
        indices: int | Iterable[int] | None = None,
        *,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Last tokens and the patches of blocks: all, the last `indices`, or those in `indices`.

        With `intermediates_only`, the patches alone; `norm` applies the last LayerNorm to them.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise InputError(f"output_fmt {output_fmt!r}; valid: NCHW, NLC")
        depth = self.config.depth
        if isinstance(indices, int):
            indices = range(depth - indices, depth)
        wanted = [*(range(depth) if indices is None else indices)]
        found = self.features(images, layers=wanted)
        maps = []
        for layer in wanted:
            x = found.layers[layer].patches  # [B, h, w, D]
            x = self.encoder.norm(x) if norm else x
            maps.append(x.flatten(1, 2) if output_fmt == "NLC" else x.permute(0, 3, 1, 2))
        return maps if intermediates_only else (found.tokens, maps)

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by a new one of zeros; 0 classes: no head."""
        old = next(self.parameters())
        self.config = replace(self.config, classes=num_classes)
        self.head = build_head(self.config)
        if self.head is not None:
            self.head.to(old.device, old.dtype)
        if self.source is not None:
            self.source = replace(self.source, labels=None, zero_head=bool(num_classes))

    @classmethod
    def from_pretrained(
        cls, weights: str | os.PathLike[str], **changes: Any
    ) -> "VisionTransformer":
        """Model of `vitlab.load_weights`; a string OWNER/NAME that is no path is on the hub."""
        hub = isinstance(weights, str) and weights.count("/") == 1 and weights[0] not in "./~"
        if hub and not str(weights).startswith("hf:") and not os.path.exists(weights):
            weights = f"hf:{weights}"
        found: VisionTransformer = resolve_entry("vitlab.weights.load:load_weights")(
            weights, **changes
        )
        return found

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a bundle that `from_pretrained`, `vitlab.load` and every command read."""
        resolve_entry("vitlab.weights.bundle:save_model")(folder, self)

    def push_to_hub(self, address: str, *, public: bool = False) -> str:
        """Upload the model with its card to OWNER/NAME; returns the address of the page."""
        pushed = resolve_entry("vitlab.jobs.bundle:push_model")(self, address, public=public)
        return str(pushed.url)

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
                f"images of {found[1]} x {found[0]} pixels (width x height); the model takes "
                f"{size[1]} x {size[0]} (dynamic_size=True accepts other sizes)"
            )
        try:
            self.config.grid_for(found)
        except ConfigError as error:
            raise InputError(str(error).replace("image_size", "images of size")) from None


def _in_order(images: Sizes, call: Callable[[Tensor], Iterable[T]]) -> list[T]:
    """Results of `call`, one for each image, from batches of images of one size."""
    places: dict[torch.Size, list[int]] = {}
    for place, image in enumerate(images):
        places.setdefault(image.shape, []).append(place)
    if not places:
        raise InputError("no images; valid: a tensor, or a list of at least one")
    found = {
        place: result
        for group in places.values()
        for place, result in zip(group, call(torch.stack([images[i] for i in group])), strict=True)
    }
    return [found[place] for place in range(len(images))]


def _each(found: Features) -> list[Features]:
    """Features of each image of a batch, as batches of one."""
    kept = {n: _rows(tokens) for n, tokens in found.layers.items()}
    return [
        Features(
            **row, pooled=found.pooled[i, None], layers={n: LayerTokens(**kept[n][i]) for n in kept}
        )
        for i, row in enumerate(_rows(found))
    ]


def _rows(found: LayerTokens) -> list[dict[str, Any]]:
    """Tokens of each image, by field of `LayerTokens`."""
    values = {field.name: getattr(found, field.name) for field in fields(LayerTokens)}
    return [
        {name: None if value is None else value[i, None] for name, value in values.items()}
        for i in range(len(found.tokens))
    ]


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
    layer = nn.Linear(config.pooled_width, config.representation, bias=config.head == "mlp")
    init_projection(layer)
    return layer
