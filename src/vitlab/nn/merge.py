"""Token merging: alike patches become one token as they go (ToMe, arXiv:2210.09461, section 3)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.machine.cores import only_products

STEPS = 2**14
"""Steps of likeness between 0 and 1; cosines that differ by less are alike, and go in order.

Patches of one colour are exactly as like each other as their neighbours are, but for rounding,
which is another in every runtime and batch.
"""


@dataclass(frozen=True)
class Merging:
    """Which patches become one token: for each, the number of the token that it goes into."""

    into: Int[Tensor, "B P"]
    left: int
    """Tokens that there are afterwards."""
    direct: bool = True
    """Whether it came of one matching: then the last tokens have every second patch from 0 on."""

    def sums(self, x: Float[Tensor, "B P D"]) -> Float[Tensor, "B M D"]:
        """For each token, the sum over the patches that go into it."""
        if only_products():
            return self._sums_by_products(x)
        images, _, width = x.shape
        first = torch.arange(images, device=x.device) * self.left
        rows = (self.into + first[:, None]).flatten()
        # Rows of one long table: many times faster than scattering along the second axis.
        summed = x.new_zeros(images * self.left, width).index_add(0, rows, x.flatten(0, 1))
        return summed.unflatten(0, (images, self.left))

    def _sums_by_products(self, x: Float[Tensor, "B P D"]) -> Float[Tensor, "B M D"]:
        """The same without adding to a row twice, which runtimes do in threads that may collide."""
        if not self.direct:
            return self._shares(self.into, 0, x.dtype) @ x
        others, movable = x[:, ::2], x[:, 1::2]
        stay = self.left - others.shape[1]
        # Those that stay come first, in their order; then those that go.
        slots, order = self.into[:, 1::2].topk(movable.shape[1], largest=False)
        movable = movable.gather(1, order[..., None].expand(-1, -1, x.shape[2]))
        gone = self._shares(slots[:, stay:], stay, x.dtype) @ movable[:, stay:]
        return torch.cat([movable[:, :stay], others + gone], dim=1)

    def _shares(
        self, into: Int[Tensor, "B G"], first: int, dtype: torch.dtype
    ) -> Float[Tensor, "B T G"]:
        """One where a patch goes into a token, for tokens from `first` on."""
        tokens = torch.arange(first, self.left, device=into.device)
        return (into[:, None] == tokens[:, None]).to(dtype)

    def after(self, before: "Merging") -> "Merging":
        """From the patches of `before` straight to the tokens of this one."""
        return Merging(into=self.into.gather(1, before.into), left=self.left, direct=False)


def match(keys: Float[Tensor, "B A P K"], count: int) -> Merging:
    """Bipartite soft matching: the `count` patches most like one of the other half go into it.

    Every second patch may go, into one of those between; at most all of these go. Likeness is the
    cosine of the keys' mean over the heads, in whole `STEPS`; of equals, the first is taken. Those
    that stay keep their order, before the others.
    """
    key = F.normalize(keys.mean(dim=1), dim=-1)
    likeness = (key[:, 1::2] @ key[:, ::2].mT * STEPS).round()
    best, target = likeness.max(dim=-1)  # [B, those that may go]
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
    """How many of the values of an image are larger, or equal and earlier: always an order.

    By comparing all with all, which any runtime can do, and the same way each time.
    """
    values = torch.where(values.isnan(), float("-inf"), values)
    mine, theirs = values[:, :, None], values[:, None]
    order = torch.arange(values.shape[1], device=values.device)
    earlier = order[None] < order[:, None]
    return ((theirs > mine) | ((theirs == mine) & earlier)).sum(dim=2)


@dataclass(frozen=True)
class Sized:
    """Tokens of which each may stand for several patches; the first `prefix` stand for none."""

    tokens: Float[Tensor, "B N D"]
    prefix: int
    sizes: Float[Tensor, "B M"] | None = None
    """Patches in each token behind the prefix; None: one in each."""
    merged: Merging | None = None
    """From the patches at the beginning to these tokens; None: they are the same."""

    def replace(self, tokens: Float[Tensor, "B N D"]) -> "Sized":
        """Other vectors for the same tokens."""
        return Sized(tokens, self.prefix, self.sizes, self.merged)

    def merge(self, keys: Float[Tensor, "B A N K"], count: int) -> "Sized":
        """Up to `count` tokens fewer: what goes together is averaged, each by its size."""
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
        """For each token behind the prefix, the mean of what is given for each of its patches."""
        assert self.merged is not None
        assert self.sizes is not None
        rows = rows.expand(self.tokens.shape[0], -1, -1)
        return self.merged.sums(rows) / self.sizes[..., None]

    def all_sizes(self) -> Float[Tensor, "B N"] | None:
        """With a one for each token of the prefix; None: nothing was merged yet."""
        return None if self.sizes is None else F.pad(self.sizes, (self.prefix, 0), value=1.0)


def proportional(sizes: Float[Tensor, "B N"] | None, queries: int) -> Tensor | None:
    """What makes a token of s patches weigh as much as s tokens: log s, added to the scores."""
    if sizes is None:
        return None
    return rearrange(sizes.log(), "b n -> b 1 1 n").expand(-1, -1, queries, -1)
