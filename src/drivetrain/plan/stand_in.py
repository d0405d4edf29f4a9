"""One process of a mesh whose others are not there, and memory that is not there either."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.plan.meter import replaced
from drivetrain.runtime.group import Group

_FAKE = "fake"


class StandInGroup(Group):
    """A rank whose messages nobody gets; the others say what it says."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        super().__init__(rank, world)
        self.backend = self.side_backend = _FAKE

    def part(self, ranks: Sequence[int]) -> Group:
        """Some of the processes as a group of their own."""
        if len(ranks) == self.world:
            return self
        part = StandInGroup(list(ranks).index(self.rank), len(ranks))
        if part.world > 1:
            part.main = part.side = dist.new_group(list(ranks), backend=_FAKE, use_local_synchronization=True)
        return part

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Every rank's message: this one's."""
        return [message] * self.world

    def broadcast_json(self, value: Any) -> Any:
        """Rank 0's value: this one's."""
        return value

    def added(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all ranks, which say as much each."""
        return [number * self.world for number in numbers]

    def least(self, numbers: Sequence[float]) -> list[float]:
        """The smallest of the ranks' numbers: this one's."""
        return list(numbers)


@contextmanager
def stand_in(rank: int, world: int) -> Iterator[StandInGroup]:
    """While entered, this process is one of so many; collectives come back at once, with whatever lies there. Only what
    all send to all (`all_to_all_single`) has numbers: those that ranks send which do what this one does.

    Raises RuntimeError where this process has a process group already.
    """
    group = StandInGroup(rank, world)
    if world == 1:
        yield group
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a group without devices lacks
        dist.init_process_group(_FAKE, store=FakeStore(), rank=rank, world_size=world)
    group.main = group.side = dist.group.WORLD
    try:
        with replaced(dist, "all_to_all_single", _from_others_alike):
            yield group
    finally:
        dist.destroy_process_group()
        _forget_groups()


def _from_others_alike(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> None:
    """As torch's. Each rank sends to this one what this one sends to itself: so one owner is asked by all for the rows
    that this rank asks it for, and as many come back as were asked for."""
    assert not async_op, "nobody waits for it here"
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if input_split_sizes is None:
        own = input.chunk(world)[rank]
        output.copy_(torch.cat([own] * world))
        return
    assert output_split_sizes is not None, "both or none"
    own, at = input.split(list(input_split_sizes))[rank], 0
    for count in output_split_sizes:
        place = output[at : at + count]
        # What answers an own question is as long as that; answers of other owners are not known, nor is their number.
        place.copy_(own) if count == len(own) else place.zero_()
        at += count


def _forget_groups() -> None:
    """What torch remembers of split tensors names groups of processes, by a mesh that looks like the next one's."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()
