"""What each of several processes checks about the others."""

import torch

from vitlab.data.images import ArraySet
from vitlab.errors import ConfigError, DataError, Elsewhere, VitlabError
from vitlab.jobs.processes import check_same
from vitlab.machine import world as of_machine
from vitlab.machine.world import World, by_first, close_world, open_world, own_items


def fail() -> None:
    raise ConfigError("a mistake that the first process finds")


def check_images(world: World) -> None:
    """Other images in the last process are one mistake, which the first reports."""
    pixels, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.arange(3)
    check_same(ArraySet(images=pixels, labels=labels), world)
    message = ""
    try:
        own = pixels + 1 if world.rank == world.size - 1 else pixels
        check_same(ArraySet(images=own, labels=labels), world)
    except DataError as mistake:
        message = str(mistake)
    except Elsewhere:
        message = "reported by the first"
    expected = f"other images or labels in process {world.size - 1} than in process 0"
    assert message.startswith("reported" if world.rank else expected), message


def check_collectives() -> None:
    """Every method, with values that differ between the processes."""
    world = open_world()
    assert open_world() is world
    rank, size = world.rank, world.size
    assert world.share({"rank": rank, "text": "ä" * rank}) == {"rank": 0, "text": ""}
    assert world.collect([rank, "x" * rank]) == [[r, "x" * r] for r in range(size)]
    tensors = [torch.full((3, 2), float(rank)), torch.tensor(rank), torch.tensor([bool(rank)])]
    world.copy_from_first(tensors)
    assert all(not tensor.any() for tensor in tensors)
    turned = torch.arange(6.0).reshape(2, 3).add(rank).T
    world.copy_from_first([turned])
    assert turned.T.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    own = torch.tensor([1.5, float(rank)])
    assert world.sum(own).tolist() == [1.5 * size, sum(range(size))]
    assert own.tolist() == [1.5, rank]
    assert world.highest([rank, -rank]) == [size - 1, 0]
    rows = [torch.full((r + 1, 2), r) for r in range(size)]
    assert all(map(torch.equal, world.gather(rows[rank]), rows))
    flags = world.gather(torch.tensor([rank == 1] * rank, dtype=torch.bool))
    assert [flag.tolist() for flag in flags] == [[r == 1] * r for r in range(size)]
    parts = [torch.full((to + 1,), 10.0 * rank + to) for to in range(size)]
    received = world.exchange(parts, [rank + 1] * size)
    assert [r.tolist() for r in received] == [[10.0 * r + rank] * (rank + 1) for r in range(size)]
    assert own_items(range(7), world) == range(rank, 7, size)
    assert by_first(lambda: [rank], world) == [0]
    mistakes: list[VitlabError] = []
    try:
        by_first(fail, world)
    except VitlabError as mistake:
        mistakes.append(mistake)
    assert [type(mistake) for mistake in mistakes] == [Elsewhere if rank else ConfigError]
    check_images(world)
    world.wait()
    close_world()
    assert of_machine._opened is None
    try:
        raise ConfigError("after the others have left")
    except ConfigError:
        print(f"rank {rank} is done")
