"""Several processes of one command, connected by torch.distributed: gloo on CPUs, NCCL on GPUs."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from vitlab.errors import ConfigError, Unreachable, one_line
from vitlab.machine.device import best_device
from vitlab.machine.world import RANK, SIZE, local_rank_and_size, rank_and_size

T = TypeVar("T")
JOINING = timedelta(minutes=10)
"""Wait for the other processes at the start."""
LONGEST = timedelta(hours=2)
"""Wait for another process, which may be inspecting files or exporting a model."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Rank of this process among several; see `machine.world.World` for the methods."""

    rank: int
    size: int
    local_size: int

    def share(self, value: T) -> T:
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = torch.tensor([len(text)])
        dist.broadcast(length, 0)
        data = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0:
            data = _bytes(text)
        dist.broadcast(data, 0)
        found: T = json.loads(data.numpy().tobytes())
        return found

    def collect(self, value: T) -> list[T]:
        gathered = self.gather(_bytes(json.dumps(value).encode()))
        return [json.loads(data.numpy().tobytes()) for data in gathered]

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            if whole.numel():
                dist.broadcast(whole.view(-1).view(torch.uint8), 0)  # of any type, bit for bit
            if self.rank:
                tensor.detach().copy_(whole)

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def highest(self, numbers: Sequence[int]) -> list[int]:
        found = torch.tensor(list(numbers))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        lengths = torch.empty(self.size, 1, dtype=torch.int64)
        dist.all_gather(list(lengths), torch.tensor([len(tensor)]))
        sizes = lengths[:, 0].tolist()
        plain = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
        padded = plain.new_zeros(max(sizes), *plain.shape[1:])
        padded[: len(plain)] = plain
        every = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(every, padded)
        return [each[:size].view(tensor.dtype) for each, size in zip(every, sizes, strict=True)]

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        sent = torch.cat(list(parts))
        received = sent.new_empty(sum(sizes))
        dist.all_to_all_single(received, sent, list(sizes), [len(part) for part in parts])
        return list(received.split(list(sizes)))

    def wait(self) -> None:
        self.highest([0])

    def close(self) -> None:
        dist.destroy_process_group()


def join() -> Processes:
    """Meet the other processes; each gets an accelerator of its own, if there are any."""
    (rank, size), (local_rank, local_size) = rank_and_size(), local_rank_and_size()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"{RANK}={rank} and {SIZE}={size} in the environment without {missing[0]}; valid: "
            f"all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them"
        )
    backend, device = "gloo", best_device()
    if device.type != "cpu":
        _use_accelerator(local_rank)
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    if not dist.is_initialized():
        try:
            store, _, _ = next(rendezvous("env://", timeout=JOINING))
            store.set_timeout(LONGEST)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=LONGEST
            )
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise Unreachable(
                f"process {rank} of {size} cannot meet the others at {address}: {one_line(error)}"
            ) from error
    return Processes(rank=rank, size=size, local_size=local_size)


def _use_accelerator(local_rank: int) -> None:
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"process {local_rank} on this machine, which has {count} accelerators; "
            f"valid: torchrun --nproc-per-node {count}"
        )
    torch.accelerator.set_device_index(local_rank)


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
