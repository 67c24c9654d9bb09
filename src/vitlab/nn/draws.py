"""Random draws of a forward pass, the same for an image in whichever process it is computed.

In training, several processes may each compute some rows of a batch, with torch's generators in the
same state. Small draws (stochastic depth, hidden patches) are made for the whole batch, and each
process takes its rows: one process draws as if there were no others. Dropout draws a number for
every value of a layer, too many to draw for the rows of other processes: its mask is drawn in
blocks of images, each from a seed of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

BLOCK = 8
"""Images whose dropout masks are drawn together."""
_place: tuple[int, int] | None = None
"""First row of this process and number of rows; None: all rows are computed here."""


@contextmanager
def computing_rows(first: int, total: int) -> Iterator[None]:
    """Compute rows of a batch of `total` images, from row `first` on, forward and backward."""
    global _place
    before, _place = _place, (first, total)
    try:
        yield
    finally:
        _place = before


def per_image(count: int, draw: Callable[[int], Tensor]) -> Tensor:
    """`draw(number of images)` for the `count` images of this process."""
    if _place is None:
        return draw(count)
    first, total = _place
    return draw(total)[first : first + count]


class Dropout(nn.Dropout):
    """Dropout whose mask for an image depends on its row in the batch, not on the process."""

    def forward(self, input: Tensor) -> Tensor:
        """`input` [B, ...] with values dropped, the first axis being images."""
        return dropout(input, self.p) if self.training else input


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each value with probability `rate`, and scale up the rest."""
    if rate <= 0.0 or rate >= 1.0:
        return x if rate <= 0.0 else x * 0.0
    keep = 1.0 - rate
    if torch.compiler.is_compiling():  # compiled code draws only those numbers that it uses
        drawn = per_image(len(x), lambda count: torch.rand(count, *x.shape[1:], device=x.device))
        return x * (drawn < keep) / keep
    return x * _mask(x, keep).div_(keep)


def _mask(x: Tensor, keep: float) -> Tensor:
    """Ones with probability `keep`, else zeros, for the rows of this process."""
    key = int(torch.randint(1 << 62, ()))
    generator = torch.Generator(x.device)
    first = 0 if _place is None else _place[0]
    mask, row = torch.empty_like(x, memory_format=torch.contiguous_format), first
    while row < first + len(x):
        block, begin = divmod(row, BLOCK)
        end = min(BLOCK, begin + first + len(x) - row)
        generator.manual_seed(key + block)
        drawn = x.new_empty(BLOCK, *x.shape[1:]).bernoulli_(keep, generator=generator)
        mask[row - first : row - first + end - begin] = drawn[begin:end]
        row += end - begin
    return mask
