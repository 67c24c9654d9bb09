"""Attention, maps and predictions of each layer, for the page; needs torch and a network.

Called in the compute thread only.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitlab.classify.classifier import Classifier
from vitlab.data.images import normalise
from vitlab.errors import InputError
from vitlab.explain.methods import explain, images_at_once, rollouts
from vitlab.explain.request import ExplainRequest, Method, Query
from vitlab.explain.trace import Trace, trace
from vitlab.models.vit import VisionTransformer
from vitlab.serve.page_facts import METHODS, OF_A_CLASS

Array = NDArray[np.float32]
Pixels = NDArray[np.uint8]
TRACES = 3
"""Images whose tokens are kept."""


class Network:
    """A classifier's network, and the tokens of the images seen last."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier, self.model = classifier, classifier.model
        self._traces: OrderedDict[bytes, Trace] = OrderedDict()

    def facts(self) -> dict[str, Any]:
        """Shape of the network: layers, heads, grids and the tokens that are not patches."""
        methods = {method: self._reason(method) for method in METHODS}
        if not isinstance(self.model, VisionTransformer):
            return {"kind": "cnn", "methods": methods}
        config, size = self.model.config, self._classifier.preprocessing.size
        grid = config.grid_for(size)
        encoder = self.model.encoder
        return {
            "kind": "vit",
            "methods": methods,
            "grid": grid,
            "grids": [encoder.grid_at(layer, grid) for layer in range(config.depth)],
            "heads": config.heads,
            "class_token": config.class_token,
            "registers": config.registers,
            "pool": config.pool,
        }

    def _reason(self, method: Method) -> str | None:
        """Reason why a method does not suit the model; None: it does."""
        try:
            ExplainRequest(method=method).check(self.model)
        except InputError as error:
            return str(error)
        return None

    def images(self, pixels: Pixels) -> Float[Tensor, "1 C H W"]:
        """Input of the network."""
        preprocessing = self._classifier.preprocessing
        device = next(self.model.parameters()).device
        given = torch.from_numpy(pixels.copy())[None].to(device)
        return normalise(given, preprocessing.mean, preprocessing.std)

    def _trace(self, pixels: Pixels) -> Trace:
        key = _key(pixels)
        if key not in self._traces:
            self._traces[key] = trace(self.model, self.images(pixels))
        self._traces.move_to_end(key)
        while len(self._traces) > TRACES:
            self._traces.popitem(last=False)
        return self._traces[key]

    @torch.no_grad()
    def attention(self, pixels: Pixels, layer: int, token: int | None = None) -> Array:
        """Attention [A, N + 1, N] of all tokens in a layer; the last row is that of the pooling.

        With `token`, only that row: [A, 1, N].
        """
        found = self._trace(pixels)
        weights = found.stages[layer].weights()[0]  # [A, N, N]
        reading = torch.einsum("m,amn->an", Query().row(found, layer)[0], weights)
        rows = torch.cat([weights, reading[:, None]], dim=1)
        return _array(rows if token is None else rows[:, token : token + 1])

    def rollout(self, pixels: Pixels, token: int | None = None) -> Array:
        """Rollout [P + 1, h, w] to each patch; the last is that to the pooling.

        With `token`, only that one: [1, h, w].
        """
        found = self._trace(pixels)
        columns = found.grid[1]
        patches = range(found.grid[0] * columns)
        queries = [*(Query(divmod(patch, columns)) for patch in patches), Query()]
        return _array(rollouts(found, queries if token is None else [queries[token]])[0])

    def map(self, pixels: Pixels, method: Method, target: int | None) -> Array:
        """Map of the patches for a class; None: the likeliest."""
        return self._maps(pixels, method, None if target is None else torch.tensor([target]))[0]

    def maps(self, pixels: Pixels, method: Method, targets: Sequence[int]) -> Array:
        """Maps [K, h, w] of the patches for each of several classes."""
        parts = torch.tensor(targets).split(images_at_once(self.model))
        return np.concatenate([self._maps(pixels, method, part) for part in parts])

    def _maps(self, pixels: Pixels, method: Method, target: Tensor | None) -> Array:
        images = self.images(pixels).expand(1 if target is None else len(target), -1, -1, -1)
        return _array(explain(self.model, images, ExplainRequest(method=method), target).maps.map)

    @torch.no_grad()
    def layers(self, pixels: Pixels) -> Array:
        """Predictions [layers, classes] of the head from the tokens after each layer."""
        found = self._trace(pixels)
        outputs = [stage.before for stage in found.stages[1:]] + [found.output]
        return _array(torch.cat([self._answer(output) for output in outputs]))

    @torch.no_grad()
    def predicted(self, pixels: Pixels) -> Array | None:
        """Prediction from the tokens of an image seen before; None: they are not kept."""
        found = self._traces.get(_key(pixels))
        return None if found is None else _array(self._answer(found.output)[0])

    def _answer(self, output: Float[Tensor, "1 N D"]) -> Float[Tensor, "1 classes"]:
        pooled = self.model.pool_tokens(self.model.encoder.norm(output))
        return self._classifier.activate(self.model.classify(pooled))


def _key(pixels: Pixels) -> bytes:
    return hashlib.sha256(pixels.tobytes()).digest()


def warm_up(classifier: Classifier) -> None:
    """Compute once everything that the page shows of an image, which later is faster."""
    network = Network(classifier)
    preprocessing = classifier.preprocessing
    pixels = np.zeros((preprocessing.channels, *preprocessing.size), np.uint8)
    methods = network.facts()["methods"]
    if methods["attention"] is None:
        network.attention(pixels, 0)
        network.layers(pixels)
    for method in OF_A_CLASS:
        if methods[method] is None:
            network.map(pixels, method, None)


def _array(values: Tensor) -> Array:
    return np.ascontiguousarray(values.detach().float().cpu().numpy(), dtype="<f4")
