"""The device that computes, its fast precision, and its errors about memory."""

from typing import Literal

import torch

from vitlab.machine import cores as runtime

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def best_device() -> torch.device:
    """The accelerator, if there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """Data type of a forward pass; an `auto` not yet resolved by a run is resolved here."""
    if precision == "auto":
        precision = fast_precision(device)
    return DTYPES[precision]


def fast_precision(device: torch.device) -> Literal["bfloat16", "float32"]:
    """Precision that `auto` means on a device."""
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """True if products of bfloat16 are native to the device, not emulated."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and runtime.multiplies_bfloat16()


# Detection of out-of-memory errors.

MESSAGES = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
"""Messages of torch when the system or Apple's GPU is out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that the device, torch or Python is out of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error) for m in MESSAGES)
