"""The inside of a model: features, explanations and attention weights, which need torch.

torch is imported at the first such request, in a thread of its own; the compute thread then
computes these requests between batches of images.
"""

import asyncio
import io
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.classifier import Classifier
from vitlab.errors import MissingExtra, VitlabError
from vitlab.serve.decoding import Shown
from vitlab.serve.settings import Refused

if TYPE_CHECKING:
    from vitlab.classify.explainer import Explainer
    from vitlab.explain.explanation import Explanation

Pixels = NDArray[np.uint8]
PAUSE = 10.0
"""Seconds until weights that could not be opened are opened again."""

log = logging.getLogger(__name__)


class TorchNetwork:
    """The network of a served model in torch, opened when it is first needed."""

    def __init__(self, open_network: Callable[[], Classifier] | None) -> None:
        """`open_network` is called in a thread; None: there are no weights for torch."""
        self._open = open_network
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._opened: asyncio.Future[Classifier] | None = None
        self._again = 0.0
        """When weights that could not be opened are opened again."""

    @property
    def has_weights(self) -> bool:
        """True if there are weights for torch, whether or not they can be opened."""
        return self._open is not None

    async def network(self) -> Classifier:
        """The network; Refused with 501 if there is none."""
        if self._open is None:
            raise _absent("an exported file only predicts")
        if self._opened is None or (_failed(self._opened) and time.monotonic() > self._again):
            loop = asyncio.get_running_loop()
            self._opened = loop.run_in_executor(self._thread, self._open)
            self._opened.add_done_callback(self._set_pause)
        try:
            # A request that is too late leaves the network to the next one.
            return await asyncio.shield(self._opened)
        except Exception as error:
            raise _absent("its weights cannot be opened with torch") from error

    def _set_pause(self, opened: "asyncio.Future[Classifier]") -> None:
        if _failed(opened):
            log.warning("the weights cannot be opened with torch: %s", opened.exception())
            self._again = time.monotonic() + PAUSE

    async def draw(self, explanation: "Explanation") -> bytes:
        """Figure of an explanation as PNG; Refused with 501 without matplotlib."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, _draw, explanation)
        except MissingExtra as error:
            raise Refused(501, "plots", str(error)) from error

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _failed(opened: "asyncio.Future[Any]") -> bool:
    return opened.done() and not opened.cancelled() and opened.exception() is not None


def _absent(reason: str) -> Refused:
    return Refused(501, "torch", f"no features or explanations of this model: {reason}")


def _draw(explanation: "Explanation") -> bytes:
    file = io.BytesIO()
    explanation.figure().savefig(file, format="png")
    return file.getvalue()


def features(
    network: Classifier, *, kind: str, layer: int | None
) -> Callable[[Pixels], dict[str, Any]]:
    """Function from the pixels of an image to its features; Refused for a wrong option."""
    import torch

    from vitlab.data.images import normalise
    from vitlab.models.features import Readout

    try:
        readout = Readout(network.model, kind=kind, layer=layer)
    except VitlabError as error:
        raise _wrong(error) from error
    mean, std = network.preprocessing.mean, network.preprocessing.std
    device = next(network.model.parameters()).device

    def compute(pixels: Pixels) -> dict[str, Any]:
        with torch.inference_mode():
            images = normalise(torch.from_numpy(pixels[None].copy()).to(device), mean, std)
            return {"features": readout(images)[0].float().cpu().numpy()}

    return compute


def explainer(network: Classifier, options: dict[str, Any]) -> "Explainer":
    """Explainer for options as those of `vitlab explain`; Refused for a wrong one."""
    from vitlab.classify.explainer import Explainer
    from vitlab.explain.request import ExplainRequest

    place = {name: value for name, value in options.items() if name != "class"}
    try:
        return Explainer(network, ExplainRequest(**place), options.get("class"))
    except VitlabError as error:
        raise _wrong(error) from error


def explain(given: "Explainer", shown: Shown) -> "Explanation":
    """Explanation of one image."""
    from vitlab.classify.explainer import Read

    view = given.classifier.preprocessing.view(shown.size)
    read = Read(path=None, picture=shown.picture, view=view, pixels=shown.pixels)
    return next(given.stream([read]))


def attention(given: "Explainer", shown: Shown) -> dict[str, Any]:
    """Attention weights of one block: of one head or their mean, of one query patch or all tokens.

    Tokens are the class token and registers (`prefix` of them), then the patches row by row.
    """
    import torch

    from vitlab.classify.explainer import Read
    from vitlab.explain.trace import trace
    from vitlab.models.vit import VisionTransformer, layer_number

    ask, model = given.ask, cast(VisionTransformer, given.classifier.model)
    view = given.classifier.preprocessing.view(shown.size)
    read = Read(path=None, picture=shown.picture, view=view, pixels=shown.pixels)
    depth = model.config.depth
    layer = layer_number(-1 if ask.layer is None else ask.layer, depth)
    with torch.no_grad():
        found = trace(model, given.images([read]))
        ask.query.check(found.grid)
        weights = found.stages[layer].weights()[0]  # [A, N, N]
        chosen = weights.mean(dim=0) if ask.head is None else weights[ask.head]
        if ask.token is not None:
            chosen = ask.query.row(found, layer)[0] @ chosen
    return {
        "layer": layer,
        "layers": depth,
        "head": ask.head,
        "heads": len(weights),
        "token": ask.token,
        "prefix": found.prefix,
        "grid": list(found.stages[layer].grid),
        "weights": chosen.float().cpu().numpy(),
    }


def _wrong(error: VitlabError) -> Refused:
    return Refused(422, "parameter", str(error))
