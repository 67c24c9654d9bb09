"""Hold out a part of very many images by hashes of their content, in arrays alone.

Copies of an image are on one side, and neither the order of the images nor their division into
shards matters. So many images need no quotas for each class to be in proportion.
"""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def held_by_content(
    digests: Hashes,
    classes: NDArray[np.int64] | None,
    *,
    share: float | None,
    count: int,
    key: int,
) -> NDArray[np.bool_]:
    """Mask of the held-out images: about `share` of them, or if that is None, at least `count`.

    Every one of the `classes` with two different images is on both sides; one with a single image
    is not held out.
    """
    drawn = mixed(digests ^ np.uint64(key))
    limit = np.uint64(share * 2.0**64) if share is not None else np.partition(drawn, count)[count]
    held = drawn < limit
    if classes is not None:
        _complete(held, drawn, classes)
    return held


def mixed(values: Hashes) -> Hashes:
    """Values whose bits depend on all bits of the given ones (splitmix64)."""
    values = values.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(31)
    return values


def _complete(held: NDArray[np.bool_], drawn: Hashes, classes: NDArray[np.int64]) -> None:
    """Give both sides an image of every class with two, and the remaining side the others."""
    total = np.bincount(classes)
    here = np.bincount(classes[held], minlength=len(total))
    wrong = np.flatnonzero((total > 0) & ((here == 0) | (here == total)))
    if not len(wrong):
        return
    order = np.lexsort((drawn, classes))
    starts = np.searchsorted(classes[order], wrong)
    for number, start in zip(wrong.tolist(), starts.tolist(), strict=True):
        members = order[start : start + total[number]]
        values = drawn[members]
        if values[0] == values[-1]:
            held[members] = False
        elif here[number] == 0:
            held[members[values == values[0]]] = True
        else:
            held[members[values == values[-1]]] = False
