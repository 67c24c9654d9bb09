"""Which numbers a device multiplies."""

import torch

from vitlab import runtime


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether products of bfloat16 are the device's own, not put together from others."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and runtime.multiplies_bfloat16()
