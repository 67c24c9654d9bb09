"""Token merging: similar patches are merged between blocks (ToMe, arXiv:2210.09461, section 3)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.machine.device import only_products

STEPS = 2**14
"""Quantisation steps of the similarity between 0 and 1; closer cosines are ties, kept in order.

Patches of one colour are as similar to each other as their neighbours are, up to rounding, which
differs between runtimes and batches.
"""


@dataclass(frozen=True)
class Merging:
    """Map from patches to merged tokens: the index of the target token for each patch."""

    into: Int[Tensor, "B P"]
    left: int
    """Number of tokens after merging."""
    direct: bool = True
    """True after a single matching: then the last tokens are the even-indexed patches."""

    def sums(self, x: Float[Tensor, "B P D"]) -> Float[Tensor, "B M D"]:
        """Sum over the patches of each token."""
        if only_products():
            return self._sums_by_products(x)
        images, _, width = x.shape
        first = torch.arange(images, device=x.device) * self.left
        rows = (self.into + first[:, None]).flatten()
        # Rows of one flat table: many times faster than scattering along the second axis.
        summed = x.new_zeros(images * self.left, width).index_add(0, rows, x.flatten(0, 1))
        return summed.unflatten(0, (images, self.left))

    def _sums_by_products(self, x: Float[Tensor, "B P D"]) -> Float[Tensor, "B M D"]:
        """Same sums without adding to a row twice, which may race in threaded runtimes."""
        if not self.direct:
            return self._shares(self.into, 0, x.dtype) @ x
        others, movable = x[:, ::2], x[:, 1::2]
        stay = self.left - others.shape[1]
        # Tokens that are kept come first, in their order; then those that are merged.
        slots, order = self.into[:, 1::2].topk(movable.shape[1], largest=False)
        movable = movable.gather(1, order[..., None].expand(-1, -1, x.shape[2]))
        gone = self._shares(slots[:, stay:], stay, x.dtype) @ movable[:, stay:]
        return torch.cat([movable[:, :stay], others + gone], dim=1)

    def _shares(
        self, into: Int[Tensor, "B G"], first: int, dtype: torch.dtype
    ) -> Float[Tensor, "B T G"]:
        """Indicator matrix: one where a patch belongs to a token, for tokens from `first` on."""
        tokens = torch.arange(first, self.left, device=into.device)
        return (into[:, None] == tokens[:, None]).to(dtype)

    def after(self, before: "Merging") -> "Merging":
        """Composed map from the patches of `before` to the tokens of this merging."""
        return Merging(into=self.into.gather(1, before.into), left=self.left, direct=False)


def match(keys: Float[Tensor, "B A P K"], count: int) -> Merging:
    """Bipartite soft matching: merge the `count` most similar pairs of patches.

    Each odd-indexed patch is matched to its most similar even-indexed patch; at most all of them
    are merged. Similarity is the cosine of the keys' mean over the heads, quantised to `STEPS`;
    ties go to the first. Patches that are kept stay in order, before the others.
    """
    key = F.normalize(keys.mean(dim=1), dim=-1)
    likeness = (key[:, 1::2] @ key[:, ::2].mT * STEPS).round()
    best, target = likeness.max(dim=-1)  # [B, candidates]
    goers = best.shape[1]
    count = min(count, goers)
    stay = goers - count
    goes = _rank(best) < count
    from_goers = torch.where(goes, stay + target, (~goes).cumsum(dim=1) - 1)
    others = torch.arange(stay, stay + keys.shape[2] - goers, device=keys.device)
    from_others = others.expand(keys.shape[0], -1)
    pairs = torch.stack([from_others[:, :goers], from_goers], dim=2).flatten(1)
    into = torch.cat([pairs, from_others[:, goers:]], dim=1)
    return Merging(into=into, left=keys.shape[2] - count)


def _rank(values: Float[Tensor, "B G"]) -> Int[Tensor, "B G"]:
    """Rank of each value in its image: the number of values larger, or equal and earlier.

    Computed by pairwise comparison, which every runtime supports and which is deterministic.
    """
    values = torch.where(values.isnan(), float("-inf"), values)
    mine, theirs = values[:, :, None], values[:, None]
    order = torch.arange(values.shape[1], device=values.device)
    earlier = order[None] < order[:, None]
    return ((theirs > mine) | ((theirs == mine) & earlier)).sum(dim=2)


@dataclass(frozen=True)
class Sized:
    """Tokens that may each represent several patches; the first `prefix` represent none."""

    tokens: Float[Tensor, "B N D"]
    prefix: int
    sizes: Float[Tensor, "B M"] | None = None
    """Number of patches in each token behind the prefix; None: one each."""
    merged: Merging | None = None
    """Map from the initial patches to these tokens; None: identity."""

    def replace(self, tokens: Float[Tensor, "B N D"]) -> "Sized":
        """Same tokens with other vectors."""
        return Sized(tokens, self.prefix, self.sizes, self.merged)

    def merge(self, keys: Float[Tensor, "B A N K"], count: int) -> "Sized":
        """Merge up to `count` tokens; merged vectors are averaged, weighted by size."""
        patches = self.tokens[:, self.prefix :]
        if patches.shape[1] < 2:
            return self
        found = match(keys[:, :, self.prefix :], count)
        sizes = patches.new_ones(patches.shape[:2]) if self.sizes is None else self.sizes
        grown = found.sums(sizes[..., None])
        patches = found.sums(patches * sizes[..., None]) / grown
        return Sized(
            torch.cat([self.tokens[:, : self.prefix], patches], dim=1),
            self.prefix,
            grown[..., 0],
            found if self.merged is None else found.after(self.merged),
        )

    def mean_of(self, rows: Float[Tensor, "P D"]) -> Float[Tensor, "B M D"]:
        """Mean of `rows` over the patches of each token behind the prefix."""
        assert self.merged is not None
        assert self.sizes is not None
        rows = rows.expand(self.tokens.shape[0], -1, -1)
        return self.merged.sums(rows) / self.sizes[..., None]

    def all_sizes(self) -> Float[Tensor, "B N"] | None:
        """Sizes including a one for each prefix token; None: nothing was merged yet."""
        return None if self.sizes is None else F.pad(self.sizes, (self.prefix, 0), value=1.0)


def proportional(sizes: Float[Tensor, "B N"] | None, queries: int) -> Tensor | None:
    """Proportional attention: log s is added to the scores of a token of s patches."""
    if sizes is None:
        return None
    return rearrange(sizes.log(), "b n -> b 1 1 n").expand(-1, -1, queries, -1)
