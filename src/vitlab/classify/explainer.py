"""From images to explanations: read, compute, and assemble the result of each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitlab.classify.predictor import ranked
from vitlab.data.images import normalise
from vitlab.errors import InputError, UnknownName, WeightsError
from vitlab.explain.explanation import Explanation, placement
from vitlab.explain.methods import Answer, explain, images_at_once
from vitlab.explain.request import ExplainRequest, check_option, question
from vitlab.images.pixels import ImageSource, Pixels, path_of, read_both, shown
from vitlab.images.preprocessing import View
from vitlab.models.config import ViTConfig
from vitlab.objectives.objective import objective_of
from vitlab.task import THRESHOLD
from vitlab.weights.labels import matching

Target = str | int
NAMED = 8
"""Classes listed in a message."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """An image that was read: whole, and as input of the model."""

    path: str | None
    picture: Image.Image
    view: View
    pixels: Pixels


class Explainer:
    """A classifier and one request for explanations of many images."""

    def __init__(self, classifier: Any, ask: ExplainRequest, target: Target | None = None) -> None:
        """`classifier` is a `Classifier`; raises for a request that it does not support."""
        ask.check(classifier.model)
        if target is not None:
            check_option(ask.method, "target", target)
        if ask.of_a_class:
            classifier.source.require_head()
            if not classifier.labels:
                raise WeightsError(
                    f"{classifier.source.path.name} has no head, so no class to explain; "
                    f"valid without one: attention, rollout"
                )
        self.classifier = classifier
        self.ask = ask
        self.target = None if target is None else class_number(classifier.labels, target)
        self._wording = question(classifier.model, ask)

    def read(
        self, source: ImageSource, name: str | None = None, *, longest: int | None = None
    ) -> Read:
        """Read an image; InputError with its name and the reason if it cannot be read.

        With `longest`, the image kept for a figure is reduced to that many pixels on its longer
        side.
        """
        path = path_of(source) if name is None else name
        try:
            whole, pixels = read_both(source, self.classifier.preprocessing)
        except InputError as error:
            raise InputError(f"{'image' if path is None else path}: {error}") from error
        picture = shown(whole)
        view = self.classifier.preprocessing.view((picture.height, picture.width))
        if longest is not None:
            picture.thumbnail((longest, longest))
        return Read(path=path, picture=picture, view=view, pixels=pixels)

    def stream(
        self, pictures: Iterable[Read], batch_size: int | None = None
    ) -> Iterator[Explanation]:
        """Explanation of each image, in order; `batch_size` None: limited by memory."""
        rest = iter(pictures)
        while batch := list(islice(rest, batch_size or images_at_once(self.classifier.model))):
            yield from self._explain(batch)

    def images(self, batch: Sequence[Read]) -> Float[Tensor, "B C H W"]:
        """Normalised input of the model."""
        preprocessing = self.classifier.preprocessing
        device = next(self.classifier.model.parameters()).device
        pixels = torch.from_numpy(np.stack([read.pixels for read in batch])).to(device)
        return normalise(pixels, preprocessing.mean, preprocessing.std)

    def _explain(self, batch: Sequence[Read]) -> Iterator[Explanation]:
        images = self.images(batch)
        target = self.target
        if target is None and objective_of(self.classifier.source.task).has_values:
            target = 0  # no value is the likeliest: the first is the default
        wanted = None if target is None else torch.full((len(batch),), target).to(images.device)
        answer = explain(self.classifier.model, images, self.ask, wanted)
        for number, read in enumerate(batch):
            yield self._put_together(read, answer, number)

    def _put_together(self, read: Read, answer: Answer, number: int) -> Explanation:
        maps = answer.maps
        grid = _finest(self.classifier.model.config, read.view.size, maps.map)
        labels = self.classifier.labels
        return Explanation(
            ask=self.ask,
            map=_array(maps.map[number]),
            layers=tuple(_array(layer[number]) for layer in maps.layers),
            fine=None if maps.fine is None else _array(maps.fine[number]),
            elsewhere=None if maps.elsewhere is None else float(maps.elsewhere[number]),
            target=labels[int(answer.target[number])] if self.ask.of_a_class else None,
            top=self._top(answer.logits[number]),
            task=self.classifier.source.task,
            path=read.path,
            picture=read.picture,
            view=read.view,
            wording=self._wording,
            grid=grid,
            where=placement(self.classifier.model, read.view.size, grid),
        )

    def _top(self, logits: Float[Tensor, " classes"]) -> tuple[tuple[str, float], ...]:
        """Prediction for an image; empty if the head has not been trained."""
        source = self.classifier.source
        if not self.classifier.labels or source.zero_head:
            return ()
        answer = self.classifier.activate(logits).float().cpu().numpy()
        return ranked(answer, self.classifier.labels, task=source.task, threshold=THRESHOLD, top=5)


def class_number(labels: Sequence[str], target: Target) -> int:
    """Number of a class given by name or number."""
    if isinstance(target, str):
        same = [number for number, label in enumerate(labels) if label == target]
        if len(same) > 1:
            numbers = ", ".join(map(str, same))
            raise InputError(f"class {target!r} is {len(same)} classes; valid: one of {numbers}")
        found = same[0] if same else matching(labels, [target])[0]
        if found is not None:
            return found
        if not target.isdecimal():
            raise _unknown(labels, target)
        target = int(target)
    if not 0 <= target < len(labels):
        raise InputError(f"class {target}; valid: 0 to {len(labels) - 1}, or a name")
    return target


def _unknown(labels: Sequence[str], target: str) -> InputError:
    error = UnknownName("class", target, labels)
    if len(labels) <= NAMED or "did you mean" in str(error):
        return InputError(str(error))
    some = ", ".join(labels[:NAMED])
    return InputError(f"unknown class {target!r}; valid: {some} … ({len(labels)} classes)")


def _finest(config: Any, size: tuple[int, int], found: Tensor) -> tuple[int, int]:
    """Grid of the model's stem; for a CNN, that of the map."""
    if isinstance(config, ViTConfig):
        return config.grid_for(size)
    return found.shape[1], found.shape[2]


def _array(values: Tensor) -> Any:
    return values.detach().float().cpu().numpy()
