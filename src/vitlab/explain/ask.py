"""What is asked of a model about an image: a method, and where in the model to look."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn

from vitlab.errors import InputError, UnknownName
from vitlab.explain.query import Each, Query, Token
from vitlab.models.config import ViTConfig
from vitlab.models.merging import check_unmerged
from vitlab.models.resnet import ResNet, TutorialCNN
from vitlab.models.vit import VisionTransformer, layer_number
from vitlab.nn.attention import SelfAttention

Method = Literal["attention", "rollout", "relevance", "gradcam", "input-gradient"]
METHODS: tuple[Method, ...] = get_args(Method)
OF_A_CLASS = ("relevance", "gradcam", "input-gradient")
"""Methods whose map is about one class; the others show the same whatever the model answers."""
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
"""Which methods an option is for."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question; `check` refuses what a model cannot answer."""

    method: Method = "relevance"
    layer: int | None = None
    """A block, from 0 or -1; None: what the method is about."""
    head: int | None = None
    """A head of it, from 0; None: the mean of all."""
    token: Token | None = None
    """Row and column of the patch that is asked; None: whatever the head reads."""
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
        """Who is asked."""
        return Query(self.token)

    @property
    def of_a_class(self) -> bool:
        """Whether the map is about one class."""
        return self.method in OF_A_CLASS

    def check(self, model: nn.Module) -> None:
        """Refuse what this model does not have, before anything is computed."""
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
        if not config.dynamic_size:  # else it is known when the images are
            self.query.check(config.grid)

    def _check_without_blocks(self, config: ViTConfig) -> None:
        """A model without encoder blocks is read through its pooling alone."""
        valid = ["input-gradient"] if config.pool == "cls" else [*OF_ANY_MODEL]
        valid += ["attention"] if config.pool == "map" else []
        if self.method not in valid or self.each is not None or self.token is not None:
            raise InputError(
                f"{self.method} of blocks, but the model has none; valid: {', '.join(valid)}, "
                f"without a layer or token"
            )


def answerable(model: nn.Module) -> tuple[Method, ...]:
    """The methods that a model has."""
    return tuple(method for method in METHODS if _answers(model, method))


def _answers(model: nn.Module, method: Method) -> bool:
    try:
        Ask(method=method).check(model)
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
    """Refuse an option that says nothing to a method."""
    if method in TAKES[name]:
        return
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else repr(value)
    word = "class" if name == "target" else name
    raise InputError(f"{word} {shown} says nothing to {method}; valid: {', '.join(TAKES[name])}")
