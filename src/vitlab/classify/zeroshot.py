"""Zero-shot classification: embeddings of labels as the head of a plain classifier.

CLIP (arXiv:2103.00020, section 3.1) and SigLIP (arXiv:2303.15343). The logit of a label is the
cosine of the embeddings of image and label, times a scale, plus a bias: a linear layer without a
text tower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.classify.prompts import prompts
from vitlab.errors import InputError
from vitlab.models.text import TextTower
from vitlab.models.vit import VisionTransformer
from vitlab.weights.formats.native import meta_model
from vitlab.weights.source import WeightSource
from vitlab.weights.text import load_text
from vitlab.weights.tokenizer import Tokenizer, open_tokenizer

AT_ONCE = 64
"""Texts in one batch."""
Watch = Callable[[str, int, int], None]
"""Progress callback: name of the stage, number done, and total."""


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """A text tower with its tokenizer."""

    tower: TextTower
    tokenizer: Tokenizer

    def embed(self, texts: Sequence[str], watch: Watch | None = None) -> Float[Tensor, "N E"]:
        """Embedding of each text, of length one."""
        found = []
        for start in range(0, len(texts), AT_ONCE):
            tokens = self.tokenizer(texts[start : start + AT_ONCE])
            with torch.inference_mode():
                found.append(F.normalize(self.tower(torch.from_numpy(tokens)), dim=1))
            if watch is not None:
                watch("texts", min(start + AT_ONCE, len(texts)), len(texts))
        return torch.cat(found)

    def embed_labels(
        self, labels: Sequence[str], templates: Sequence[str], watch: Watch | None = None
    ) -> Float[Tensor, "N E"]:
        """Mean over the templates of the embeddings of each label, of length one."""
        texts = [text for label in labels for text in prompts(label, templates)]
        each = self.embed(texts, watch).unflatten(0, (len(labels), len(templates)))
        return F.normalize(each.mean(dim=1), dim=1)


def open_text(model: Any, source: WeightSource) -> TextEncoder:
    """Text encoder of the weights of an image tower; raises for any other model."""
    if not isinstance(model, VisionTransformer) or model.config.classes:
        raise InputError(
            f"{source.path.name} is a classifier, which has no text tower; valid: the weights of a "
            f"whole CLIP or SigLIP, image and text"
        )
    tower = load_text(source, model.config)
    return TextEncoder(tower=tower, tokenizer=open_tokenizer(source, tower.config))


def with_labels(
    model: VisionTransformer,
    text: TextEncoder,
    labels: Sequence[str],
    templates: Sequence[str],
    watch: Watch | None = None,
) -> VisionTransformer:
    """Classifier whose head holds the embeddings of the labels; it shares the model's tensors."""
    tower = text.tower
    head = text.embed_labels(labels, templates, watch) * tower.logit_scale.exp()
    bias = torch.zeros(len(labels))
    if tower.logit_bias is not None:
        bias += tower.logit_bias
    found = meta_model(replace(model.config, classes=len(labels), unit_norm=True))
    state = model.state_dict()
    device = next(model.parameters()).device
    state |= {"head.weight": head.clone().to(device), "head.bias": bias.to(device)}
    found.load_state_dict(state, strict=True, assign=True)
    found.source = replace(
        model.source,
        labels=tuple(labels),
        task=tower.config.task,
        known_classes=(),
        zero_head=False,
    )
    return found.eval()
