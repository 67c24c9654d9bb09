"""Trace a model to a graph with `torch.export`: the least work from images to logits."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitlab.errors import InputError
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.device import plain_products
from vitlab.models.config import Size, pair
from vitlab.models.cost import image_shape
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer, logits_of
from vitlab.weights.adapt import adapt, adapted_config

INPUT, OUTPUT, BATCH = "images", "logits", "batch"
EXAMPLES = 2
"""Images in the traced batch: with one, torch would assume a batch size of one."""


class Deployable(nn.Module):
    """From images, or their 8-bit pixels, to logits."""

    def __init__(self, model: nn.Module, inside: Preprocessing | None) -> None:
        """With `inside`, pixels are normalised in the graph, by these settings."""
        super().__init__()
        self.model = model
        self.answer: Callable[[Tensor], Tensor] = logits_of(model)
        self.normalises = inside is not None
        mean, std = ((), ()) if inside is None else (inside.mean, inside.std)
        self.mean = nn.Buffer(torch.tensor(mean)[:, None, None], persistent=False)
        self.std = nn.Buffer(torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.normalises:
            images = (images.float() / 255 - self.mean) / self.std
        return self.answer(images)


def trace(
    model: nn.Module,
    *,
    inside: Preprocessing | None = None,
    dynamic_batch: bool = True,
    plain: bool = False,
) -> ExportedProgram:
    """Graph of a model on the CPU in eval mode, for one image or any number of them.

    With `plain`, attention is matrix products and a softmax instead of one operation of torch,
    whose conversion to ONNX copies the keys back and forth.
    """
    deployable = Deployable(model, inside).eval()
    kind = torch.float32 if inside is None else torch.uint8
    images = torch.zeros(EXAMPLES if dynamic_batch else 1, *image_shape(model), dtype=kind)
    shapes = ({0: Dim(BATCH, min=1, max=2**20)},) if dynamic_batch else None
    with quiet(), torch.no_grad(), plain_products() if plain else nullcontext():
        deployable(images)  # computes masks and coordinates, which become constants
        return torch.export.export(deployable, (images,), dynamic_shapes=shapes)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's warnings about its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# A model for another image size, its position tables resized: no resize is in the graph.


def at_size(model: nn.Module, image_size: Size | None) -> nn.Module:
    """The model itself if it already has that size, else a resized copy."""
    config = cast(VisionTransformer, model).config
    if image_size is None or pair(image_size) == pair(config.image_size):
        return model
    if not isinstance(model, VisionTransformer):
        height, width = pair(config.image_size)
        raise InputError(
            f"image_size {image_size} for a {type(model).__name__}, which is no Vision "
            f"Transformer; valid: its own, {height}x{width}"
        )
    method = config.position_resize
    target = adapted_config(config, {"image_size": image_size}, method)
    with torch.device("meta"):
        resized = create_model(target)
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        found = adapt(name, tensor, config, target, method)
        assert found is not None, name  # only a new head has no source
        state[name] = found
    resized.load_state_dict(state, assign=True)
    return resized.eval()
