"""Request for an explanation of an image: a method, and a place in the model."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import InputError, UnknownName
from vitlab.explain.trace import Trace, unpooled
from vitlab.models.cnn import ResNet, TutorialCNN
from vitlab.models.config import ViTConfig
from vitlab.models.merging import check_unmerged
from vitlab.models.vit import VisionTransformer, layer_number
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import Grid
from vitlab.nn.pool import AttentionPool

# Query: the tokens that a question is about, as a distribution over the tokens of a layer.

Token = tuple[int, int]
Each = Literal["layer", "head"]
"""Unit of which each gets its own map."""


@dataclass(frozen=True)
class Query:
    """A patch by row and column, or, without one, the tokens that the head reads."""

    token: Token | None = None

    def check(self, grid: Grid) -> None:
        """Raise for a patch outside of the grid."""
        if self.token is None:
            return
        row, column = self.token
        if not (0 <= row < grid[0] and 0 <= column < grid[1]):
            raise InputError(
                f"token {row},{column}; valid: rows 0 to {grid[0] - 1}, columns 0 to {grid[1] - 1}"
            )

    def row(self, found: Trace, layer: int) -> Float[Tensor, "B N"]:
        """Weight of each token after a block in the query; sums to one."""
        x, grid = found.stages[layer].x, found.stages[layer].grid
        row = x.new_zeros(x.shape[:2])
        pool = found.model.config.pool
        if self.token is not None:
            row[:, found.prefix + _place(self.token, found.grid, grid)] = 1.0
        elif pool == "cls":
            row[:, 0] = 1.0
        elif pool == "cls_dist":
            row[:, :2] = 0.5
        elif found.model.config.attention_pool:
            row = behind(found, layer, probe_looks(found).mean(dim=1))
        else:
            row[:, 0 if pool == "mean_all" else found.prefix :] = 1.0
            row /= row.sum(dim=1, keepdim=True)
        if self.token is None and pool == "cls_mean":
            row /= 2
            row[:, 0] = 0.5
        return row

    def words(self, config: ViTConfig) -> str:
        """Description of the query, as the beginning of a question."""
        if self.token is not None:
            return "the patch in row {}, column {}".format(*self.token)
        if config.pool == "cls":
            return "the class token"
        if config.pool == "cls_dist":
            return "the class token and the distillation token"
        if config.pool == "cls_mean":
            return "the class token and the average patch"
        if config.attention_pool:
            return "the probe of the attention pooling"
        if config.pool == "mean_all":
            return "the average token (this model averages all of its tokens)"
        has = "reads no class token" if config.class_token else "has no class token"
        return f"the average patch (this model averages its patches and {has})"


def behind(found: Trace, layer: int, row: Float[Tensor, "B M"]) -> Float[Tensor, "B N"]:
    """Row over the last block's tokens, converted to those of an earlier block with more tokens."""
    for stage in found.stages[:layer:-1]:
        row = unpooled(row, found.prefix, stage.grid) if stage.pools else row
    return row


def _place(token: Token, whole: Grid, grid: Grid) -> int:
    """Index of the patch in `grid` that covers one of the finer grid `whole`."""
    row, column = (
        place * cells // fine for place, cells, fine in zip(token, grid, whole, strict=True)
    )
    return row * grid[1] + column


def probe_looks(found: Trace) -> Float[Tensor, "B A N"]:
    """Attention weights of the probe of an attention pooling."""
    pool = found.model.pool
    assert isinstance(pool, AttentionPool)
    with torch.no_grad():
        tokens = found.tokens()[:, pool.skip :]
        looks = pool.attention.weights(pool.probes(len(tokens)), tokens)[:, :, 0]
        return F.pad(looks, (pool.skip, 0))


Method = Literal["attention", "rollout", "relevance", "gradcam", "input-gradient"]
METHODS: tuple[Method, ...] = get_args(Method)
OF_A_CLASS = ("relevance", "gradcam", "input-gradient")
"""Methods whose map is about one class; the others do not depend on the prediction."""
CNN = ResNet | TutorialCNN
OF_ANY_MODEL = ("gradcam", "input-gradient")
"""Methods that need no attention."""
TAKES = {
    "layer": ("attention", "rollout", "gradcam"),
    "head": ("attention",),
    "token": ("attention", "rollout"),
    "each": ("attention", "rollout", "relevance", "gradcam"),
    "target": OF_A_CLASS,
}
"""Methods that accept each option."""


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """A request; `check` raises for one that a model does not support."""

    method: Method = "relevance"
    layer: int | None = None
    """A block, from 0 or -1; None: the method's default."""
    head: int | None = None
    """A head of it, from 0; None: the mean of all."""
    token: Token | None = None
    """Row and column of the query patch; None: the tokens that the head reads."""
    each: Each | None = None
    """`layer`: also a map for each block; `head`: also one for each head of each block."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownName("method", self.method, METHODS)
        if self.each is not None and self.each not in get_args(Each):
            raise UnknownName("each", self.each, get_args(Each))
        for name in ("layer", "head", "token", "each"):
            if getattr(self, name) is not None:
                check_option(self.method, name, getattr(self, name))
        if self.each == "head" and self.method != "attention":
            raise InputError(f"each 'head' with {self.method}; valid: attention, or each 'layer'")
        if self.each is not None and (self.layer, self.head) != (None, None):
            raise InputError(f"each {self.each!r} shows all; valid: without a layer or head")

    @property
    def query(self) -> Query:
        """Query of the request."""
        return Query(self.token)

    @property
    def of_a_class(self) -> bool:
        """True if the map is about one class."""
        return self.method in OF_A_CLASS

    def check(self, model: nn.Module) -> None:
        """Raise for anything that this model does not have, before anything is computed."""
        check_unmerged(model, self.method)
        if not isinstance(model, VisionTransformer):
            if not isinstance(model, CNN):
                raise InputError(f"a {type(model).__name__}; valid: a model of vitlab's")
            if self.method not in OF_ANY_MODEL or (self.layer, self.each) != (None, None):
                inside = "" if self.method not in OF_ANY_MODEL else " of its layers"
                raise InputError(
                    f"{self.method}{inside} of a {type(model).__name__}, which is no Vision "
                    f"Transformer; valid: {' or '.join(OF_ANY_MODEL)}, without a layer"
                )
            return
        config = model.config
        if not config.depth:
            self._check_without_blocks(config)
        if self.of_a_class:
            _check_gradients(model)
        if self.layer is not None:
            layer_number(self.layer, config.depth)
        if self.head is not None and not 0 <= self.head < config.heads:
            raise InputError(f"head {self.head}; valid: 0 to {config.heads - 1}")
        if not config.dynamic_size:  # otherwise the grid is known only with the images
            self.query.check(config.grid)

    def _check_without_blocks(self, config: ViTConfig) -> None:
        """Raise unless the request concerns the pooling of a model without encoder blocks."""
        valid = ["input-gradient"] if config.pool in ("cls", "cls_dist") else [*OF_ANY_MODEL]
        valid += ["attention"] if config.attention_pool else []
        if self.method not in valid or self.each is not None or self.token is not None:
            raise InputError(
                f"{self.method} of blocks, but the model has none; valid: {', '.join(valid)}, "
                f"without a layer or token"
            )


def answerable(model: nn.Module) -> tuple[Method, ...]:
    """Methods that a model supports."""
    return tuple(method for method in METHODS if _answers(model, method))


def _answers(model: nn.Module, method: Method) -> bool:
    try:
        ExplainRequest(method=method).check(model)
    except InputError:
        return False
    return True


def _check_gradients(model: VisionTransformer) -> None:
    for block in model.encoder.blocks:
        if not isinstance(block.attention, SelfAttention):
            raise InputError(
                f"{type(block.attention).__name__} is attention of your own, whose gradients are "
                f"not known; valid for it: attention and rollout, or a kind made of SelfAttention"
            )


def check_option(method: str, name: str, value: Any) -> None:
    """Raise for an option that a method does not use."""
    if method in TAKES[name]:
        return
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else repr(value)
    word = "class" if name == "target" else name
    raise InputError(f"{word} {shown} says nothing to {method}; valid: {', '.join(TAKES[name])}")


# The question that a map answers, in words: the caption of every figure.

CLASS = "{class}"
"""Placeholder for the class that a map is about."""


def question(model: nn.Module, ask: ExplainRequest) -> str:
    """Question that the map of one class, or of none, answers."""
    config = model.config if isinstance(model, VisionTransformer) else None
    if ask.method == "input-gradient":
        return (
            f"Where would a small change of the pixels change the score of {CLASS} most? "
            f"Length of the gradient at each pixel (arXiv:1312.6034)."
        )
    if ask.method == "gradcam":
        of = "the last feature map" if config is None else _what_is_read(config, ask)
        return (
            f"Which features raise the score of {CLASS}, and where are they? "
            f"Grad-CAM (arXiv:1610.02391) of {of}."
        )
    assert config is not None  # ensured by `Ask.check`
    if ask.method == "attention":
        return _of_attention(config, ask)
    if ask.method == "rollout":
        return (
            f"Which patches contribute to {ask.query.words(config)} after {_block(config, ask)}, "
            f"if only attention moves information? Attention rollout (arXiv:2005.00928)."
        )
    return (
        f"Which patches support {CLASS}, seen from {ask.query.words(config)}? "
        f"Attention weighted by its gradient through all {config.depth} blocks (arXiv:2103.15679)."
    )


def parts(ask: ExplainRequest) -> str:
    """Description of the further maps of a figure."""
    if ask.each == "head":
        return "A map for each head of each block, both counted from 0."
    return "A map for each block, counted from 0." if ask.each else ""


def _of_attention(config: ViTConfig, ask: ExplainRequest) -> str:
    heads = f"the mean of {config.heads} heads" if ask.head is None else f"head {ask.head}"
    who = ask.query.words(config)
    if config.attention_pool and ask.token is None:
        if ask.layer is None and ask.each is None:  # always true without blocks
            return f"Where does {who} look, in {heads}?"
        who = f"what {who} reads, as much as it reads it,"
    if ask.each == "head":
        return f"Where does {who} look?"
    return f"Where does {who} look in {_block(config, ask)}, in {heads}?"


def _block(config: ViTConfig, ask: ExplainRequest) -> str:
    if ask.each is not None:
        return "each block"
    number = config.depth - 1 if ask.layer is None else layer_number(ask.layer, config.depth)
    return f"block {number}" + (" (the last)" if number == config.depth - 1 else "")


def _what_is_read(config: ViTConfig, ask: ExplainRequest) -> str:
    if ask.layer is None and ask.each is None and config.pool != "cls":
        return "what the pooling reads"
    return f"what the attention of {_block(config, ask)} reads"
