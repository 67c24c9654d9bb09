"""Which numbers a training computes with, and which a device multiplies."""

from typing import Literal

import torch

from vitlab.machine import cores as runtime

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """The numbers of a forward pass; `auto` that no run has settled is settled here."""
    if precision == "auto":
        precision = fast_precision(device)
    return DTYPES[precision]


def fast_precision(device: torch.device) -> Literal["bfloat16", "float32"]:
    """What `auto` means on a device."""
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether products of bfloat16 are the device's own, not put together from others."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and runtime.multiplies_bfloat16()


# Whether an update failed for want of memory.

MESSAGES = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
"""What torch says when the system or Apple's GPU gives it no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is the device, torch or Python saying that there is no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error) for m in MESSAGES)
