"""Models without memory: tensors that have shapes and no numbers (torch's `meta` device)."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


class MetaMode(TorchDispatchMode):
    """Remembers what meta kernels return: they are slow, and a transformer repeats its shapes."""

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
    """The same modules over tensors without memory; tied tensors stay tied."""
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
    """What `forward` returns for a copy of `model` in eval mode, and images, that hold no memory.

    Gradients are on: without them a model may leave out what nothing reads. A model that looks at
    values cannot run on the meta device: for it, `forward` is called again with a true copy.
    `owned` says that `model` is on the meta device and nobody else's: it is not copied.
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
