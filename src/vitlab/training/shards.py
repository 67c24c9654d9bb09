"""Gradients of a batch from a fixed number of shards, added in a fixed order.

Each shard is computed alone, with the same shapes and the same random numbers wherever that
happens, and the sums are those of one binary tree. So every process, of however many, has the same
gradients bit for bit, if each computes with the same number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.data.loader import Batch
from vitlab.data.order import seed_for
from vitlab.machine.world import World
from vitlab.training.batch_pieces import own_shards
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Loss
from vitlab.training.state import TrainState, autocast

Node = tuple[int, int]
"""A sum of the tree: of the shards from the first number to before the second."""


def halves(node: Node) -> tuple[Node, Node]:
    """The two sums that a sum adds; the first is of a power of two of shards."""
    low, high = node
    middle = low + (1 << ((high - low - 1).bit_length() - 1))
    return (low, middle), (middle, high)


def own_nodes(node: Node, own: range) -> Iterator[Node]:
    """The largest sums, in `node` or below, of shards that are all `own`."""
    low, high = node
    if low >= own.stop or high <= own.start:
        return
    if own.start <= low and high <= own.stop:
        yield node
        return
    for half in halves(node):
        yield from own_nodes(half, own)


def tree_sum(node: Node, found: Callable[[Node], Tensor | None]) -> Tensor:
    """Sum of a node, from sums that are found."""
    known = found(node)
    if known is not None:
        return known
    first, second = halves(node)
    return tree_sum(first, found) + tree_sum(second, found)


def add_over_processes(own: Callable[[Node], Tensor], config: TrainConfig, world: World) -> Tensor:
    """Sum over the shards of all processes; `own` computes a sum of shards of this process.

    Each process adds an equal share of the values, and all get the result.
    """
    root, ranks = (0, config.shards), range(world.size)
    nodes = [list(own_nodes(root, own_shards(config, world, rank))) for rank in ranks]
    sums = [own(node) for node in nodes[world.rank]]
    if world.size == 1:
        return sums[0]
    pieces = [node.tensor_split(world.size) for node in sums]
    length = len(pieces[0][world.rank])
    received = world.exchange(
        [torch.cat([node[rank] for node in pieces]) for rank in ranks],
        [length * len(nodes[rank]) for rank in ranks],
    )
    found = {
        node: part
        for rank in ranks
        for node, part in zip(nodes[rank], received[rank].split(max(length, 1)), strict=False)
    }
    total = tree_sum(root, found.get) if length else pieces[0][world.rank]
    return torch.cat(world.gather(total))


def backward_by_shards(
    state: TrainState, batch: Batch, config: TrainConfig, loss_of: Loss
) -> Tensor:
    """Set the gradients of the batch's mean loss, and return the loss."""
    shards = _Shards(state, batch, config, loss_of)
    total = add_over_processes(lambda node: tree_sum(node, shards.compute), config, state.world)
    return shards.settle(total)


class _Shards:
    """The shards of this process: gradient, loss and batch statistics as one vector each."""

    def __init__(self, state: TrainState, batch: Batch, config: TrainConfig, loss_of: Loss) -> None:
        self.state, self.config, self.loss_of = state, config, loss_of
        self.own = own_shards(config, state.world)
        # Copies: of a slice, the place in memory would decide how some products are computed.
        self.images = [part.clone() for part in batch.images.chunk(len(self.own))]
        self.targets = [part.clone() for part in batch.targets.chunk(len(self.own))]
        self.learning = [p for p in state.model.parameters() if p.requires_grad]
        self.norms: list[Any] = [m for m in state.model.modules() if _counts(m)]
        self.before = [(norm.momentum, *map(torch.clone, _running(norm))) for norm in self.norms]
        self.used: list[nn.Parameter] = []

    def compute(self, node: Node) -> Tensor | None:
        """Vector of one shard; None: the node is a sum of several."""
        number, end = node
        if end - number > 1:
            return None
        place, state = number - self.own.start, self.state
        torch.manual_seed(seed_for(self.config.seed, "shard", state.step, number))
        for norm in self.norms:
            norm.momentum = 1.0  # the running statistics become those of the shard
        with autocast(self.config, self.images[place].device):
            outputs = state.forward(self.images[place])
        loss = self.loss_of(outputs, self.targets[place], self.config.label_smoothing)
        loss = loss / self.config.shards
        gradients = torch.autograd.grad(state.scaler.scale(loss), self.learning, allow_unused=True)
        pairs = zip(self.learning, gradients, strict=True)
        used = [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]
        self.used = [parameter for parameter, _ in used]
        statistics = [value for norm in self.norms for value in _running(norm)]
        parts = [*(gradient for _, gradient in used), *statistics, loss.detach()]
        return torch.cat([part.reshape(-1).to(used[0][1].dtype) for part in parts])

    def settle(self, total: Tensor) -> Tensor:
        """Set gradients and running statistics from the sum over all shards; return the loss."""
        statistics = [value for norm in self.norms for value in _running(norm)]
        sizes = [each.numel() for each in (*self.used, *statistics)]
        *parts, loss = total.split([*sizes, 1])
        for parameter, gradient in zip(self.used, parts, strict=False):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype)
        found = iter(parts[len(self.used) :])
        with torch.no_grad():
            for norm, (momentum, *running) in zip(self.norms, self.before, strict=True):
                norm.momentum = momentum
                for value, was in zip(_running(norm), running, strict=True):
                    mean = next(found).view_as(value) / self.config.shards
                    value.copy_(was * (1 - momentum) + mean * momentum)
                norm.num_batches_tracked.add_(1 - len(self.own))
        return loss[0].float()


def _counts(module: nn.Module) -> bool:
    """True for a batch norm that is training."""
    kind = nn.modules.batchnorm._BatchNorm
    return isinstance(module, kind) and module.training and module.track_running_stats


def _running(norm: Any) -> Sequence[Tensor]:
    return norm.running_mean, norm.running_var
