"""Text towers of CLIP (arXiv:2103.00020) and SigLIP (arXiv:2303.15343): tokens to an embedding."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.errors import ConfigError, InputError
from vitlab.models.config import check_limits
from vitlab.nn.attention import CausalAttention, SelfAttention
from vitlab.nn.encoder import EncoderBlock, make_norm
from vitlab.nn.init import POSITION_STD, init_projection
from vitlab.nn.mlp import Gelu, Mlp


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """Every setting of a text tower's architecture."""

    width: int
    depth: int
    heads: int
    mlp_width: int
    vocabulary: int
    """Number of tokens that have an embedding."""
    context: int
    """Length of a text in tokens; shorter texts are padded."""
    embedding: int | None
    """Width of the projected embedding; None: no projection."""
    projection_bias: bool = False
    causal: bool = True
    """Tokens attend to themselves and to those before them only."""
    pool: Literal["argmax", "eos", "first", "last"] = "argmax"
    """Token that becomes the embedding: that with the highest number, the first `eos`, or the one
    at the first or the last position."""
    eos: int | None = None
    """Number of the token that ends a text, for `pool="eos"`."""
    gelu: Gelu = "erf"
    norm_eps: float = 1e-5
    layer_scale: float | None = None
    """Initial value of LayerScale; None: no LayerScale."""
    task: Literal["single-label", "multi-label"] = "single-label"
    """Trained with a softmax over the texts of a batch (CLIP), or a sigmoid for each (SigLIP)."""

    def __post_init__(self) -> None:
        for name in ("width", "heads", "mlp_width", "vocabulary", "context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} of a text tower; valid: from 1")
        check_limits(
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            mlp_width=self.mlp_width,
            context=self.context,
            embedding=self.embedding or 0,
        )
        if self.width % self.heads:
            raise ConfigError(
                f"width {self.width} of a text tower does not split into {self.heads} heads"
            )
        if self.pool == "eos" and self.eos is None:
            raise ConfigError("pool 'eos' of a text tower needs the number of that token, eos")


class TextTower(nn.Module):
    """Transformer over the tokens of a text, and the scale and bias of the similarities."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.token_embedding.weight, std=POSITION_STD)
        self.position_table = nn.Parameter(
            torch.empty(config.context, config.width).normal_(std=POSITION_STD)
        )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.depth))
        self.norm = make_norm(config.width, eps=config.norm_eps)
        self.projection: nn.Linear | None = None
        if config.embedding is not None:
            self.projection = nn.Linear(config.width, config.embedding, bias=config.projection_bias)
            init_projection(self.projection)
        self.logit_scale = nn.Parameter(torch.zeros(()))
        """Logarithm of the factor of the cosines."""
        self.logit_bias = nn.Parameter(torch.zeros(())) if self._has_bias else None

    @property
    def _has_bias(self) -> bool:
        return self.config.task == "multi-label"

    def forward(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B E"]:
        """Embedding of each text, not normalised."""
        self._check(tokens)
        at = self._pooled_position(tokens)
        if self.config.causal:  # nothing behind the last position that is read can change it
            tokens = tokens[:, : int(at.max()) + 1]
        x = self.token_embedding(tokens) + self.position_table[: tokens.shape[1]]  # [B, N, D]
        for block in self.blocks:
            x = block(x, (1, tokens.shape[1]))
        pooled = self.norm(x[torch.arange(len(x), device=x.device), at])
        return pooled if self.projection is None else self.projection(pooled)

    def _pooled_position(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, " B"]:
        """Position in each text whose token becomes the embedding."""
        pool = self.config.pool
        if pool == "argmax":
            return tokens.argmax(dim=1)
        if pool == "eos":
            return tokens.eq(self.config.eos or 0).int().argmax(dim=1)
        place = 0 if pool == "first" else tokens.shape[1] - 1
        return torch.full((len(tokens),), place, device=tokens.device)

    def _check(self, tokens: Tensor) -> None:
        """Raise for tokens that give no, or a wrong, embedding."""
        config = self.config
        length, most = tokens.shape[-1], config.context
        if tokens.ndim != 2 or not 0 < length <= most or (config.pool == "last" and length < most):
            valid = f"{most}" if config.pool == "last" else f"1 to {most}"
            raise InputError(f"tokens of shape {list(tokens.shape)}; valid: [texts, {valid}]")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < config.vocabulary:
            raise InputError(
                f"token {int(tokens.max())} for a text tower of {config.vocabulary} tokens; valid: "
                f"the tokenizer of these weights"
            )


def _block(config: TextConfig) -> EncoderBlock:
    attention = CausalAttention if config.causal else SelfAttention
    return EncoderBlock(
        attention(config.width, heads=config.heads, head_width=config.width // config.heads),
        Mlp(config.width, config.mlp_width, gelu=config.gelu),
        config.width,
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
    )
