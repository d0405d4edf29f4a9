"""How the processes of a run are laid out: how many along each axis, and where each one stands. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass
from math import prod

AXES = ("pipeline", "replicate", "shard", "context", "tensor")
"""Outermost first: what talks most lies closest together, on one machine where that is possible."""


@dataclass(frozen=True)
class MeshSizes:
    """Processes along each axis, in the order of `AXES`.

    `replicate` and `shard` share out the lanes; the others work on the same samples. Along `replicate` all hold the
    same, along `shard` and `context` together each holds a part of every tensor, along `tensor` a part of each matrix
    that is split. Along `context` each works on some positions of a sample.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def world(self) -> int:
        """All processes."""
        return prod(astuple(self))

    @property
    def data(self) -> int:
        """Places in the batch: the processes that share out the lanes, one of those that read the same samples."""
        return self.replicate * self.shard

    @property
    def summed(self) -> int:
        """Processes whose gradients add up: they read samples, or positions of samples, of their own."""
        return self.data * self.context

    @property
    def replicated(self) -> bool:
        """Whether every process holds everything, and reads samples of its own."""
        return self.world == self.replicate

    @property
    def there(self) -> dict[str, int]:
        """The axes of more than one process, outermost first."""
        return {axis: size for axis, size in zip(AXES, astuple(self), strict=True) if size > 1}

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis."""
        found: dict[str, int] = {}
        for axis in reversed(AXES):
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return found

    def ranks(self, places: Mapping[str, Collection[int]]) -> tuple[int, ...]:
        """The ranks that stand at one of these places along each of these axes, and anywhere along the others,
        ascending. It takes as long as there are such ranks, however many there are in all."""
        found = [0]
        for axis, size in zip(AXES, astuple(self), strict=True):
            there = sorted(places.get(axis, range(size)))
            found = [rank * size + place for rank in found for place in there]
        return tuple(found)

    def __str__(self) -> str:
        """Such as `replicate 2 x shard 4`."""
        return " x ".join(f"{axis} {size}" for axis, size in self.there.items()) or "one process"
