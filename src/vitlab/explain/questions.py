"""The question that a map answers, in words: what stands under every figure."""

from torch import nn

from vitlab.explain.ask import Ask
from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer, layer_number

CLASS = "{class}"
"""Stands for the class that a map is of."""


def question(model: nn.Module, ask: Ask) -> str:
    """What the map of one class, or of none, answers."""
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
    assert config is not None  # `Ask.check` has seen the model
    if ask.method == "attention":
        return _of_attention(config, ask)
    if ask.method == "rollout":
        return (
            f"From which patches comes what {ask.query.words(config)} holds behind "
            f"{_block(config, ask)}, if attention alone moves it? "
            f"Attention rollout (arXiv:2005.00928)."
        )
    return (
        f"Which patches speak for {CLASS}, as {ask.query.words(config)} tells it? "
        f"Attention weighted by its gradient through all {config.depth} blocks (arXiv:2103.15679)."
    )


def parts(ask: Ask) -> str:
    """What the further maps of a figure are."""
    if ask.each == "head":
        return "A map for each head of each block, both counted from 0."
    return "A map for each block, counted from 0." if ask.each else ""


def _of_attention(config: ViTConfig, ask: Ask) -> str:
    heads = f"the mean of {config.heads} heads" if ask.head is None else f"head {ask.head}"
    who = ask.query.words(config)
    if config.pool == "map" and ask.token is None:
        if ask.layer is None and ask.each is None:  # so it is where there are no blocks
            return f"Where does {who} look, in {heads}?"
        who = f"what {who} reads, as much as it reads it,"
    if ask.each == "head":
        return f"Where does {who} look?"
    return f"Where does {who} look in {_block(config, ask)}, in {heads}?"


def _block(config: ViTConfig, ask: Ask) -> str:
    if ask.each is not None:
        return "each block"
    number = config.depth - 1 if ask.layer is None else layer_number(ask.layer, config.depth)
    return f"block {number}" + (" (the last)" if number == config.depth - 1 else "")


def _what_is_read(config: ViTConfig, ask: Ask) -> str:
    if ask.layer is None and ask.each is None and config.pool != "cls":
        return "what the pooling reads"
    return f"what the attention of {_block(config, ask)} reads"
