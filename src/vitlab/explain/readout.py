"""From the last block to the logits, step by step in float64 (arXiv:2010.11929, equation 4)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.explain.steps import Linear, double, layer_norm, linear_of
from vitlab.models.vit import VisionTransformer


@dataclass(frozen=True, kw_only=True, eq=False)
class Readout:
    """Last norm, pooling and head; steps that a model does not have are None."""

    last: Float[Tensor, "N D"]
    """Tokens that leave the last block."""
    normed: Float[Tensor, "N D"] | None
    """Those tokens after the last LayerNorm."""
    pooled: Float[Tensor, " D"]
    """Input of the head: the class token, a mean, or the output of attention pooling."""
    hidden: Float[Tensor, " R"] | None
    """Output of the hidden layer of a head of two layers."""
    head: Linear | None
    logits: Float[Tensor, " classes"] | None
    """Output of the head."""
    own: Float[Tensor, " classes"]
    """Output of the model itself, to compare with `logits`."""
    by_layer: Float[Tensor, "L classes"] | None
    """Output of the head applied to the tokens that leave each block."""


@torch.inference_mode()
def read_out(model: VisionTransformer, leaving: list[Float[Tensor, "1 _ D"]]) -> Readout:
    """Steps behind the last block, of the tokens that leave each block of a model."""
    config, last = model.config, double(leaving[-1][0])
    norm = model.encoder.norm
    normed = layer_norm(last, norm) if isinstance(norm, nn.LayerNorm) else None
    behind = last if normed is None else normed
    if config.pool == "cls":
        pooled = behind[0]
    elif config.pool == "map":
        pooled = double(model.pool_tokens(norm(leaving[-1]))[0])
    else:
        pooled = behind[config.prefix if config.pool == "mean" else 0 :].mean(dim=0)
    if config.pool != "map" and isinstance(model.pooled_norm, nn.LayerNorm):
        pooled = layer_norm(pooled, model.pooled_norm)
    hidden = None
    if model.pre_logits is not None:
        hidden = linear_of(model.pre_logits.weight, model.pre_logits.bias)(pooled)
        hidden = hidden.tanh() if config.head == "mlp" else hidden
    head = None if model.head is None else linear_of(model.head.weight, model.head.bias)
    outputs = [model.classify(model.pool_tokens(norm(tokens)))[0] for tokens in leaving]
    return Readout(
        last=last,
        normed=normed,
        pooled=pooled,
        hidden=hidden,
        head=head,
        logits=None if head is None else head(pooled if hidden is None else hidden),
        own=double(outputs[-1]),
        by_layer=None if head is None else double(torch.stack(outputs)),
    )
