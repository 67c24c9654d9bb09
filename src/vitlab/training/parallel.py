"""A model trained by several processes: DDP, or FSDP2 with every tensor in shards.

Imported only if there are several processes.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from vitlab.config import flat, to_dict
from vitlab.errors import ConfigError
from vitlab.machine.world import World
from vitlab.models.pretraining import PretrainingModel
from vitlab.models.vit import logits_of
from vitlab.nn.batch_norm import share_batch_norms
from vitlab.nn.encoder import EncoderBlock
from vitlab.training.batch_pieces import check_division
from vitlab.training.config import TrainConfig
from vitlab.training.muon import Compute, Muon

Forward = Callable[[Tensor], Tensor]
_KNOWN = inspect.signature(DistributedDataParallel).parameters
_COPIED = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
OPTIONS: dict[str, Any] = {_COPIED: False}
"""No copies of buffers before each pass: statistics of batch norms are equal in all processes."""


def parallelise(
    model: nn.Module, forward: Forward, config: TrainConfig, world: World
) -> tuple[Forward, dict[str, Any]]:
    """Forward pass whose backward pass adds gradients over the processes, and fields of the state.

    With FSDP the parameters of the model are replaced by their shards.
    """
    check_division(config, world)
    if config.shards:  # they are added by `training.shards`
        return forward, {}
    share_batch_norms(model, world.sum)
    if config.parallel == "fsdp":
        check_fsdp(config)
        skeleton = copy.deepcopy(model).to("meta")
        shard(model)
        more = {"unsynced": lambda: _unsynced(model), "skeleton": skeleton}
        return logits_of(model), {"sharded": True, **more}
    replicas = Replicas(model, forward)
    return replicas, {"unsynced": replicas.unsynced}


# DDP: every process has the whole model, and gradients are averaged while others are computed.


class _Pass(nn.Module):
    """A forward pass as a module, which DDP needs."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.answer = forward

    def forward(self, images: Tensor) -> Tensor:
        return self.answer(images)


class Replicas:
    """Forward pass through DDP, made again when other parameters are trained."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        self._pass = _Pass(model, forward)
        self._learning: list[bool] = []
        self._ddp: DistributedDataParallel | None = None

    def __call__(self, images: Tensor) -> Tensor:
        outputs: Tensor = self._current()(images)
        return outputs

    def unsynced(self) -> AbstractContextManager[None]:
        """Context of a backward pass without communication."""
        return self._current().no_sync()

    def _current(self) -> DistributedDataParallel:
        learning = [parameter.requires_grad for parameter in self._pass.parameters()]
        if self._ddp is None or learning != self._learning:
            self._ddp, self._learning = None, learning  # the old one lets go of the parameters
            self._ddp = DistributedDataParallel(
                self._pass,
                **OPTIONS,
                init_sync=False,  # the weights of the first process were copied
                gradient_as_bucket_view=True,
                find_unused_parameters=_has_unused(self._pass.model),
            )
        return self._ddp


def _has_unused(model: nn.Module) -> bool:
    """True for an objective whose model has parameters that it does without."""
    if not isinstance(model, PretrainingModel):
        return False
    behind = (model.vit.pool, model.vit.pooled_norm, model.vit.pre_logits, model.vit.head)
    return any(part is not None and list(part.parameters()) for part in behind)


# FSDP2: parameters, gradients and the optimizer's state are in shards, one in each process.


def check_fsdp(config: TrainConfig) -> None:
    """Raise for settings that need the whole model in one process."""
    for name, found, valid in (
        ("head_first", bool(config.head_first), "0"),
        ("compile", config.compile, "false"),
        ("precision", config.precision == "float16", "bfloat16 or float32"),
        ("budget_in", config.budget_in == "minutes", "epochs or steps"),
        ("optimizer.sam", bool(config.optimizer.sam), "0"),
    ):
        if found:
            value = dict(flat(to_dict(config)))[name]
            raise ConfigError(f"{name} {value} with parallel fsdp; valid: {valid}, or parallel ddp")


def shard(model: nn.Module) -> None:
    """Shard each encoder block, and the rest of the model; names stay."""
    for module in model.modules():
        if isinstance(module, EncoderBlock):
            fully_shard(module)
    fully_shard(model)
    for name in ("logits", "predict"):
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


@contextmanager
def _unsynced(model: nn.Module) -> Iterator[None]:
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def spread_muon(optimizers: Sequence[Optimizer], world: World) -> None:
    """Let each matrix of Muon be orthogonalised by one process, its owner."""
    for optimizer in optimizers:
        if isinstance(optimizer, Muon):
            optimizer.spread = partial(_by_owners, world)


def _by_owners(
    world: World, parameters: Sequence[nn.Parameter], updates: Sequence[Tensor], compute: Compute
) -> list[Tensor]:
    """Shards of the updates that the owners of the parameters compute from all their shards."""
    ranks, owners = range(world.size), _owners(parameters, world.size)
    of = [[n for n, owner in enumerate(owners) if owner == rank] for rank in ranks]
    own, like = of[world.rank], updates[0]

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.flatten() for part in parts]) if parts else like.new_empty(0)

    received = world.exchange(
        [joined([updates[n] for n in of[rank]]) for rank in ranks],
        [sum(_numel(parameters[n], rank, world) for n in own) for rank in ranks],
    )
    pieces = [
        part.split([_numel(parameters[n], rank, world) for n in own])
        for rank, part in enumerate(received)
    ]
    wholes = [
        torch.cat([pieces[rank][place] for rank in ranks]).view(parameters[n].shape)
        for place, n in enumerate(own)
    ]
    new = [each.flatten() for each in compute([parameters[n] for n in own], wholes)]
    shards = [
        each.split([_numel(parameters[n], rank, world) for rank in ranks])
        for n, each in zip(own, new, strict=True)
    ]
    returned = world.exchange(
        [joined([each[rank] for each in shards]) for rank in ranks],
        [sum(updates[n].numel() for n in of[rank]) for rank in ranks],
    )
    found: dict[int, Tensor] = {}
    for rank, part in enumerate(returned):
        found.update(zip(of[rank], part.split([updates[n].numel() for n in of[rank]]), strict=True))
    return [found[n].view_as(updates[n]) for n in range(len(parameters))]


def _owners(parameters: Sequence[nn.Parameter], processes: int) -> list[int]:
    """Owner of each parameter: the process with the fewest numbers so far, the largest first."""
    owned, owners = [0] * processes, [0] * len(parameters)
    for n in sorted(range(len(parameters)), key=lambda n: -parameters[n].numel()):
        owners[n] = owned.index(min(owned))
        owned[owners[n]] += parameters[n].numel()
    return owners


def _numel(parameter: nn.Parameter, rank: int, world: World) -> int:
    """Numbers of a parameter in the shard of a process: equal rows, but for the last ones."""
    rows = -(-len(parameter) // world.size)
    held = min(max(len(parameter) - rank * rows, 0), rows)
    return held * (parameter.numel() // len(parameter))


def like(value: Tensor, target: Tensor) -> Tensor:
    """Whole tensor in the shards of another one."""
    if not isinstance(target, DTensor):
        return value.to(target.device)
    value = value.to(target.device)
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
