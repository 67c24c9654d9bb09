"""Constants are computed once, belong to no graph and to no passing mode."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import vitlab.nn.pos_embed as constants
from vitlab.nn.pos_embed import constant


def test_computed_once_for_the_same_arguments() -> None:
    calls = []

    @constant
    def line(length: int, device: torch.device) -> torch.Tensor:
        calls.append(length)
        return torch.arange(length, device=device)

    cpu = torch.device("cpu")
    assert line(3, cpu) is line(3, cpu)
    assert len(line(5, cpu)) == 5
    assert calls == [3, 5]


def test_no_more_than_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "LIMIT", 2)
    calls = []

    @constant
    def line(length: int) -> torch.Tensor:
        calls.append(length)
        return torch.arange(length)

    for length in (1, 2, 1, 3, 1, 2):  # 3 pushes out 2, the one not asked for longest
        line(length)
    assert calls == [1, 2, 3, 2]


def test_a_constant_made_in_inference_mode_can_be_trained_with() -> None:
    @constant
    def ones(length: int) -> torch.Tensor:
        return torch.ones(length)

    with torch.inference_mode():
        made = ones(3)
    assert not made.is_inference()
    weight = torch.ones(3, requires_grad=True)
    (weight * ones(3)).sum().backward()
    assert weight.grad is not None
    assert not made.requires_grad


def test_fake_tensors_are_not_kept() -> None:
    @constant
    def ones(length: int) -> torch.Tensor:
        return torch.ones(length)

    with FakeTensorMode():
        ones(3)
    assert type(ones(3)) is torch.Tensor
    assert ones(3).tolist() == [1.0] * 3


def test_a_default_device_does_not_leak_into_constants() -> None:
    @constant
    def ones(length: int) -> torch.Tensor:
        return torch.ones(length)

    with torch.device("meta"):
        ones(3)
    assert ones(3).tolist() == [1.0] * 3
