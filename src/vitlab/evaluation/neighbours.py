"""Nearest-neighbour classification by the cosine between features."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitlab.errors import InputError

COUNTS = (1, 3, 5, 10, 20)
"""Candidate numbers of neighbours."""
CHUNK = 4096
"""Number of images whose neighbours are searched at once."""


class Neighbours:
    """Known images, as a classifier for others."""

    def __init__(
        self, features: Float[Tensor, "N D"], labels: Int[Tensor, " N"], classes: int
    ) -> None:
        self._known = F.normalize(features.double(), dim=1)
        self._labels = labels
        self._classes = classes

    def scores(self, features: Float[Tensor, "M D"], count: int) -> Float[Tensor, "M classes"]:
        """Votes of the `count` nearest; ties go to the more similar images."""
        parts = F.normalize(features.double(), dim=1).split(CHUNK)
        return torch.cat([self._votes(part @ self._known.mT, count) for part in parts])

    def left_out(self, count: int) -> Float[Tensor, "N classes"]:
        """Votes of the `count` nearest of all other known images, for each of them."""
        similarity = self._known @ self._known.mT
        return self._votes(similarity.fill_diagonal_(-torch.inf), count)

    def best_count(self) -> int:
        """Number of neighbours with the best accuracy on left-out images; of ties, the largest."""
        fewest = int(torch.bincount(self._labels, minlength=self._classes).min())
        counts = [count for count in COUNTS if count < fewest] or [1]
        right = [int((self.left_out(c).argmax(dim=1) == self._labels).sum()) for c in counts]
        return max(zip(right, counts, strict=True))[1]

    def _votes(self, similarity: Float[Tensor, "M N"], count: int) -> Float[Tensor, "M classes"]:
        if not 1 <= count <= len(self._labels):
            raise InputError(f"{count} neighbours of {len(self._labels)} images; valid: 1 to all")
        nearest, places = similarity.topk(count, dim=1)
        # Similarities add up to less than one vote, so they only break ties.
        votes = 1.0 + nearest / (2 * count + 1)
        empty = similarity.new_zeros(len(similarity), self._classes)
        return empty.scatter_add_(1, self._labels[places], votes)
