"""Weights under which no part is silent: a fresh model has zero heads and norms that do nothing."""

import torch
from torch import nn


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Draw every parameter and statistic anew; factors stay around one, variances positive."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.empty(tensor.shape, dtype=tensor.dtype).normal_(generator=generator)
        if name.endswith("running_var"):
            tensor.copy_(0.5 + noise.abs())
        elif tensor.ndim < 2:
            factor = name.endswith(("weight", "gamma"))
            tensor.copy_(0.3 * noise + (1.0 if factor else 0.0))
        elif name.endswith((".weight", "in_proj_weight")):
            tensor.copy_(noise * (2.0 / tensor[0].numel()) ** 0.5)
        else:
            tensor.copy_(noise)
