"""What a model costs: parameters, and FLOPs of a forward pass at 2 per multiply-add."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils.flop_counter import flop_registry, sdpa_flop

from vitlab.errors import ConfigError
from vitlab.models.config import Size, ViTConfig, pair
from vitlab.models.meta import MetaMode, dry_run
from vitlab.models.registry import create_model
from vitlab.models.variants import ModelConfig

aten = torch.ops.aten

FORMULAS: dict[OpOverloadPacket, Callable[..., int]] = {
    **flop_registry,
    # torch knows fused attention by its CUDA names only.
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_fused_attention_overrideable: sdpa_flop,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one image costs."""

    parameters: int
    flops: int
    """2 per multiply-add of matrix products, convolutions and attention."""
    tokens: int | None
    """Length of the sequence that enters the encoder; None for a model that has none."""

    @property
    def macs(self) -> int:
        """Multiply-adds: what others often print as FLOPs."""
        return self.flops // 2


class FlopCounter(MetaMode):
    """Hands the FLOPs of each operation to `record` while active."""

    def __init__(self, record: Callable[[int], None]) -> None:
        super().__init__()
        self.record = record

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.record(formula(*args, **(kwargs or {}), out_val=result))
        return result


def count_flops(model: nn.Module, image_size: Size, channels: int) -> int:
    """FLOPs of one image through `model`, as `torch.utils.flop_counter` counts them."""
    return dry_run(model, (1, channels, *pair(image_size)), _count)


def cost(model: str | ModelConfig | nn.Module) -> Cost:
    """Parameters, FLOPs and tokens of a variant's name, a config, or a model that has one."""
    model, owned = without_memory(model)
    channels, *size = image_shape(model)
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        flops=dry_run(model, (1, channels, *size), _count, owned=owned),
        tokens=count_tokens(model, size),
    )


def without_memory(model: str | ModelConfig | nn.Module) -> tuple[nn.Module, bool]:
    """The named or described model, built on the meta device, and whether it was built here."""
    if isinstance(model, nn.Module):
        return model, False
    with torch.device("meta"), MetaMode():
        return create_model(model), True


def image_shape(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of the images that the model's config names."""
    config: Any = getattr(model, "config", None)
    if not (hasattr(config, "channels") and hasattr(config, "image_size")):
        raise ConfigError(
            f"{type(model).__name__} has no config that gives the size of its images; valid: "
            f"a model of vitlab, or input_size=(batch, channels, height, width)"
        )
    height, width = pair(config.image_size)
    return config.channels, height, width


def count_tokens(model: nn.Module, image_size: Sequence[int], layer: int = 0) -> int | None:
    """Length of the sequence that a block sees for images of this size; None without any."""
    config = getattr(model, "config", None)
    if not isinstance(config, ViTConfig):
        return None
    height, width = image_size
    return replace(config, image_size=(height, width)).tokens_at(layer % max(config.depth, 1))


def _count(model: nn.Module, images: Tensor) -> int:
    counts: list[int] = []
    with FlopCounter(counts.append):
        model(images)
    return sum(counts)
