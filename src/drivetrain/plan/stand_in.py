"""One process of a mesh whose others are not there, and memory that is not there either."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from drivetrain.runtime.group import Group

_FAKE = "fake"


class StandInGroup(Group):
    """A rank whose messages nobody gets; the others say what it says."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        super().__init__(rank, world)
        self.backend = _FAKE

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
    """While entered, this process is one of so many; collectives come back at once, with whatever lies there.

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
        yield group
    finally:
        dist.destroy_process_group()
        _forget_groups()


def _forget_groups() -> None:
    """What torch remembers of split tensors names groups of processes, by a mesh that looks like the next one's."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()
