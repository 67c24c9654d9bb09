"""The MLP of a block, with and without gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.nn.mlp import Mlp


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_a_hook_keeps_what_it_saw(activation: str) -> None:
    torch.manual_seed(0)
    mlp, x = Mlp(7, 11, activation=activation).eval(), torch.randn(2, 3, 7)
    seen: list[Tensor] = []
    expected = F.linear(x, mlp.fc1.weight, mlp.fc1.bias)
    with torch.inference_mode():
        plain = mlp(x)
        mlp.fc1.register_forward_hook(lambda module, inputs, output: seen.append(output))
        hooked = mlp(x)
    torch.testing.assert_close(seen[0], expected)
    torch.testing.assert_close(hooked, plain)
