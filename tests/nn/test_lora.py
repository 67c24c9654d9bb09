"""LoRA against its definition."""

import pytest
import torch
from torch import nn

from vitlab.models.variants import create_model
from vitlab.nn.lora import LoraLinear, add_lora, merge_lora

# A different prime for every axis.
B, IN, OUT, R = 3, 7, 11, 2


@pytest.mark.parametrize("bias", [True, False])
def test_forward_and_merge_match_the_definition(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(IN, OUT, bias=bias).double()
    layer = LoraLinear(plain, rank=R, scale=1.5).double()
    x = torch.randn(B, IN, dtype=torch.float64)
    torch.testing.assert_close(layer(x), plain(x), atol=0, rtol=0)
    nn.init.normal_(layer.lora_b)
    expected = plain(x) + 1.5 * torch.einsum("bi,ri,or->bo", x, layer.lora_a, layer.lora_b)
    torch.testing.assert_close(layer(x), expected)
    merged = layer.merged()
    assert type(merged) is nn.Linear
    torch.testing.assert_close(merged(x), expected)


def test_a_whole_model_there_and_back() -> None:
    torch.manual_seed(0)
    model = create_model("vit_test").double().eval()
    nn.init.normal_(model.head.weight)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    names, before = list(model.state_dict()), model(x)
    assert add_lora(model, rank=R) == 2 * 4
    torch.testing.assert_close(model(x), before, atol=0, rtol=0)
    extra = {name for name in model.state_dict() if name not in names}
    assert len(extra) == 2 * 2 * 4
    for name, parameter in model.named_parameters():
        if name.endswith("lora_b"):
            nn.init.normal_(parameter, std=0.1)
    changed = model(x)
    assert (changed - before).abs().max() > 1e-3
    merge_lora(model)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), changed)


def test_a_model_without_an_encoder_has_nothing_to_adapt() -> None:
    assert add_lora(create_model("cnn_tutorial"), rank=R) == 0


def test_rank_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 0 is not at least 1"):
        LoraLinear(nn.Linear(IN, OUT), rank=0, scale=1.0)
