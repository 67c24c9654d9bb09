"""The processes that work on one command: one, or several that a launcher such as torchrun started.

A launcher sets RANK and WORLD_SIZE. Code that divides work takes a `World` and calls its methods;
in a single process they return what they are given. `processes.py` has the one of several
processes: nothing imports it, and nothing here imports torch, unless there are several.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from vitlab.errors import ConfigError, Elsewhere, VitlabError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
RANK, SIZE, LOCAL_RANK, LOCAL_SIZE = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"


@runtime_checkable
class World(Protocol):
    """Rank of this process among all of a command, and the exchange of values between them.

    Every process calls the same methods in the same order.
    """

    @property
    def rank(self) -> int:
        """Number of this process, from 0; process 0 prints and writes."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    @property
    def local_size(self) -> int:
        """Number of processes on this machine."""
        ...

    def share(self, value: T) -> T:
        """Value of process 0, which must be JSON-serialisable."""
        ...

    def collect(self, value: T) -> list[T]:
        """JSON-serialisable value of each process, by rank."""
        ...

    def copy_from_first(self, tensors: "Iterable[Tensor]") -> None:
        """Overwrite tensors with those of process 0."""
        ...

    def sum(self, tensor: "Tensor") -> "Tensor":
        """Sum over the processes, as a new tensor."""
        ...

    def highest(self, numbers: Sequence[int]) -> list[int]:
        """Largest value of each number in any process."""
        ...

    def gather(self, tensor: "Tensor") -> "list[Tensor]":
        """Tensor of each process, by rank; they may differ in their first axis."""
        ...

    def exchange(self, parts: "Sequence[Tensor]", sizes: Sequence[int]) -> "list[Tensor]":
        """Part of every process for this one, by rank; `parts` are those for each process.

        Parts are flat; `sizes` are those of the parts received.
        """
        ...

    def wait(self) -> None:
        """Wait until every process is here."""
        ...

    def close(self) -> None:
        """Leave the others, at the end of the command."""
        ...


class Alone:
    """A single process."""

    rank, size, local_size = 0, 1, 1

    def share(self, value: T) -> T:
        return value

    def collect(self, value: T) -> list[T]:
        return [value]

    def copy_from_first(self, tensors: "Iterable[Tensor]") -> None:
        pass

    def sum(self, tensor: "Tensor") -> "Tensor":
        return tensor

    def highest(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def gather(self, tensor: "Tensor") -> "list[Tensor]":
        return [tensor]

    def exchange(self, parts: "Sequence[Tensor]", sizes: Sequence[int]) -> "list[Tensor]":
        return list(parts)

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


ALONE = Alone()
_opened: World | None = None


def launched() -> bool:
    """True if a launcher started this process, perhaps as one of several."""
    return RANK in os.environ and SIZE in os.environ


def rank_and_size() -> tuple[int, int]:
    """Rank of this process and number of processes, from the environment."""
    if not launched():
        return 0, 1
    size = _number(SIZE, range(1, 1 << 20))
    return _number(RANK, range(size)), size


def check_alone(work: str, valid: str) -> None:
    """Raise for work of a single process in one of several."""
    size = rank_and_size()[1]
    if size > 1:
        raise ConfigError(f"{work} in {size} processes (WORLD_SIZE in the environment); {valid}")


def local_rank_and_size() -> tuple[int, int]:
    """Rank and size among the processes on this machine; without LOCAL_WORLD_SIZE, among all."""
    rank, size = rank_and_size()
    if LOCAL_SIZE in os.environ:
        size = _number(LOCAL_SIZE, range(1, size + 1))
    return (_number(LOCAL_RANK, range(size)) if LOCAL_RANK in os.environ else rank % size), size


def open_world() -> World:
    """The processes of this command; the first call waits for all of them."""
    global _opened
    if _opened is None:
        if rank_and_size()[1] == 1:
            return ALONE
        from vitlab.machine.processes import join

        _opened = join()
    return _opened


def close_world() -> None:
    """Leave the other processes, if there are any."""
    global _opened
    if _opened is not None:
        _opened.close()
        _opened = None


def own_items(items: Sequence[T], world: World) -> Sequence[T]:
    """Items of this process: every `world.size`-th, from its rank on."""
    return items[world.rank :: world.size]


def by_first(work: Callable[[], T], world: World) -> T:
    """Result of `work`, JSON-serialisable, which the first process does; all raise its mistakes."""
    if world.size == 1:
        return work()
    found: list[T] = []
    if world.rank == 0:
        try:
            found = [work()]
        except VitlabError as mistake:
            mistake.together = True
            world.share(found)
            raise
    answer = world.share(found)
    if not answer:
        raise Elsewhere("process 0 reports a mistake")
    return answer[0]


# Tensors of which each process holds a shard: DTensors of torch, which is not imported here.


def is_shard(tensor: "Tensor") -> bool:
    """True if this process holds a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def local(tensor: "Tensor") -> "Tensor":
    """Shard of a tensor that this process holds; a tensor that is not sharded, itself."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def whole(tensor: "Tensor") -> "Tensor":
    """All shards of a tensor, from every process."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def _number(name: str, valid: range) -> int:
    text = os.environ[name].strip()
    if not text.isdecimal() or int(text) not in valid:
        raise ConfigError(f"{name}={text} in the environment; valid: {valid[0]} to {valid[-1]}")
    return int(text)
