"""Cost of a model: parameters, and FLOPs of a forward pass at 2 per multiply-add."""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop

from vitlab.errors import ConfigError
from vitlab.models.config import Size, ViTConfig, pair
from vitlab.models.variants import ModelConfig, create_model
from vitlab.models.vit import logits_of

# Models without memory: tensors that have shapes and no numbers (torch's `meta` device).

T = TypeVar("T")


class MetaMode(TorchDispatchMode):
    """Cache the results of meta kernels: they are slow, and a transformer repeats its shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[Any, Callable[[], Any]] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        in_place = _in_place(func)
        if not (in_place or _functional(func)):
            return func(*args, **kwargs)
        key = (func, _signature(args), _signature(tuple(kwargs.items())))
        if key in self._known:
            return args[0] if in_place else self._known[key]()
        result = func(*args, **kwargs)
        if all(isinstance(x, Tensor) and x.is_meta for x in _as_tuple(result)):
            self._known[key] = _maker(result)
        return result


def meta_copy(model: nn.Module) -> nn.Module:
    """Copy of the modules over tensors without memory; tied tensors stay tied."""
    twins: dict[int, Any] = {}
    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        for tensor in held:
            if isinstance(tensor, Tensor):
                twins.setdefault(id(tensor), _meta_twin(tensor))
    return copy.deepcopy(model, twins)


def dry_run(
    model: nn.Module,
    input_size: Sequence[int],
    forward: Callable[[nn.Module, Tensor], T],
    *,
    owned: bool = False,
) -> T:
    """Result of `forward` for a memory-free copy of `model` in eval mode, and memory-free images.

    Gradients are on: without them a model may leave out unused results. A model that reads values
    cannot run on the meta device: for it, `forward` is called again with a real copy. `owned` means
    that `model` is on the meta device and used by no other code: it is not copied.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.inference_mode(False), torch.enable_grad(), _unfused_multihead_attention():
        try:
            images = torch.empty(*input_size, dtype=dtype, device="meta")
            return forward((model if owned else meta_copy(model)).eval(), images)
        except RuntimeError:
            if device.type == "meta":
                raise
            images = torch.zeros(*input_size, dtype=dtype, device=device)
            return forward(copy.deepcopy(model).eval(), images)


@contextmanager
def _unfused_multihead_attention() -> Iterator[None]:
    """Keep `nn.MultiheadAttention` from becoming one operation that torch does not count."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _meta_twin(tensor: Tensor) -> Tensor:
    twin = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin


@cache
def _functional(func: OpOverload) -> bool:
    schema = func._schema
    return not schema.is_mutable and not any(value.alias_info for value in schema.returns)


@cache
def _in_place(func: OpOverload) -> bool:
    return func._schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags


def _signature(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device.type
    if isinstance(value, list | tuple):
        return tuple(_signature(item) for item in value)
    return type(value), value


def _maker(result: Any) -> Callable[[], Any]:
    shapes = [(x.shape, x.stride(), x.dtype) for x in _as_tuple(result)]

    def make() -> Any:
        made = [torch.empty_strided(*s, dtype=dtype, device="meta") for *s, dtype in shapes]
        return tuple(made) if isinstance(result, tuple) else made[0]

    return make


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


aten = torch.ops.aten

FORMULAS: dict[OpOverloadPacket, Callable[..., int]] = {
    **flop_registry,
    # torch counts fused attention under its CUDA names only.
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_fused_attention_overrideable: sdpa_flop,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of one image."""

    parameters: int
    flops: int
    """2 per multiply-add of matrix products, convolutions and attention."""
    tokens: int | None
    """Length of the sequence that enters the encoder; None for a model that has none."""

    @property
    def macs(self) -> int:
        """Multiply-adds, often printed as FLOPs elsewhere."""
        return self.flops // 2


class FlopCounter(MetaMode):
    """Pass the FLOPs of each operation to `record` while active."""

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
    """Named or described model, built on the meta device, and whether it was built here."""
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
    """Sequence length at a block for images of this size; None for a model without tokens."""
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


# Memory of the intermediate results of a model.


def largest_output(model: nn.Module) -> int:
    """Bytes of the largest tensor that any part of the model returns for one image."""
    image = _blank(model)
    sizes = [image.nbytes]

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.nbytes)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with torch.inference_mode():
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def peak_bytes(model: nn.Module) -> int:
    """Peak bytes of intermediate results for one image, without the weights."""
    image = _blank(model)
    with torch.inference_mode(), PeakMemory() as memory:
        logits_of(model)(image)
    return image.nbytes + memory.peak


class Footprint:
    """Memory of one image in a model, measured on first use."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._form = _form(model)

    def is_of(self, model: nn.Module) -> bool:
        """True if `model` is the measured model, unchanged."""
        return model is self._model and _form(model) == self._form

    @cached_property
    def largest_output(self) -> int:
        """Same as the function of this name."""
        return largest_output(self._model)

    @cached_property
    def peak_bytes(self) -> int:
        """Same as the function of this name."""
        return peak_bytes(self._model)


def _form(model: nn.Module) -> tuple[Any, ...]:
    """Key of the sizes of results: sizes of images and weights, dtype and device."""
    weights = ((weight.shape, weight.dtype, weight.device) for weight in model.parameters())
    return (image_shape(model), *weights)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _blank(model: nn.Module) -> Tensor:
    parameter = next(model.parameters())
    return torch.zeros(1, *image_shape(model), dtype=parameter.dtype, device=parameter.device)


class PeakMemory(TorchDispatchMode):
    """Count the bytes of live results of operations, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {s._cdata for s in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given | self._alive:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
