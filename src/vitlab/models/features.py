"""Feature extraction: pooled, class-token or patch features of any layer, and embeddings."""

from typing import Any, Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import InputError, UnknownName
from vitlab.models.merging import check_unmerged
from vitlab.models.vit import VisionTransformer, layer_number

Kind = Literal["pooled", "cls", "patches", "embedding"]


class Readout:
    """Features of one kind and layer of a model; unsupported requests raise at construction."""

    def __init__(self, model: nn.Module, *, kind: str = "pooled", layer: int | None = None) -> None:
        """Without `layer`, the output of the last LayerNorm; with it, of an earlier block."""
        if kind not in get_args(Kind):
            raise UnknownName("kind of features", kind, get_args(Kind))
        _check(model, kind, layer)
        self.model = model
        self.kind = kind
        self.layer = None if layer is None else layer_number(layer, _depth(model))

    def __call__(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        """One vector per image, or a grid of them."""
        if not isinstance(self.model, VisionTransformer):
            cnn: Any = self.model
            pooled: Tensor = cnn.pool_map(cnn.feature_map(images))
            return pooled
        if self.kind == "embedding":
            return self.model.represent(self.model.features(images).pooled)
        if self.layer is None:
            found: Tensor = getattr(self.model.features(images), self.kind)
            return found
        tokens = self.model.layer(images, self.layer)
        if self.kind == "pooled":
            return self.model.pool(tokens.tokens)
        return tokens.patches if self.kind == "patches" else tokens.tokens[:, 0]


def _check(model: nn.Module, kind: str, layer: int | None) -> None:
    check_unmerged(model, "features")
    if not isinstance(model, VisionTransformer):
        if kind != "pooled" or layer is not None:
            asked = f"{kind} features" + ("" if layer is None else f" of layer {layer}")
            raise InputError(
                f"{asked} of a {type(model).__name__}, which is no Vision Transformer; "
                f"valid: pooled, without a layer"
            )
        return
    if kind == "cls" and not model.config.class_token:
        raise InputError("cls features of a model without class token; valid: pooled, patches")
    if kind == "embedding" and layer is not None:
        raise InputError(
            f"embedding of layer {layer}, but its projection knows the last layer alone; valid: "
            f"embedding without a layer"
        )
    if kind == "pooled" and layer is not None and model.config.attention_pool:
        raise InputError(
            f"pooled features of layer {layer}, but this model's attention pooling knows the last "
            f"layer alone; valid: cls, patches, or pooled without a layer"
        )


def _depth(model: Any) -> int:
    depth: int = model.config.depth
    return depth
