"""Whether an update failed for want of memory."""

import torch

MESSAGES = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
"""What torch says when the system or Apple's GPU gives it no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is the device, torch or Python saying that there is no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error) for m in MESSAGES)
