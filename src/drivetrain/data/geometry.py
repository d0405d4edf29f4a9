"""How a global batch is cut: lanes, processes, micro-batches. Plain arithmetic on positions."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure


class Chunk(NamedTuple):
    """A micro-batch: positions [start, stop); `lane` is its first sample's, `part` counts within that lane."""

    start: int
    stop: int
    lane: int
    part: int


@dataclass(frozen=True)
class Geometry:
    """Steps of `batches` on `lanes` lanes, shared by `processes`, at most `micro` samples at a time (None: any number).

    `processes` divides `lanes` divides each batch. Lane k of a step holds its positions [k, k + 1) * batch / lanes.
    """

    batches: Batches
    lanes: int
    processes: int
    micro: int | None

    def __post_init__(self) -> None:
        for size in self.batches.sizes:
            if size % self.lanes:
                raise Failure(
                    Exit.BAD_RECIPE,
                    f"a batch of {size} is not a multiple of lanes {self.lanes}",
                    f"lanes may be {', '.join(map(str, divisors(gcd(*self.batches.sizes))))}",
                )
        if self.lanes % self.processes:
            raise Failure(
                Exit.BAD_RECIPE,
                f"{self.processes} processes do not share {self.lanes} lanes evenly",
                f"the number of processes may be {', '.join(map(str, divisors(self.lanes)))}",
            )

    def share(self, rank: int, step: int, total: int) -> list[Chunk]:
        """The micro-batches of a rank in a step of a run that ends at position `total`.

        In a ragged last step, which ends before its batch is full, lanes keep their places; the last ones are short or
        empty.
        """
        start, stop = self.batches.span(step)
        own = (stop - start) // self.processes
        lane_size = (stop - start) // self.lanes
        first, last = start + rank * own, min(start + (rank + 1) * own, total)
        chunks: list[Chunk] = []
        for at in range(first, last, self.micro or own):
            lane = (at - start) // lane_size
            part = chunks[-1].part + 1 if chunks and chunks[-1].lane == lane else 0
            chunks.append(Chunk(at, min(at + (self.micro or own), last), lane, part))
        return chunks


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def choose_lanes(batch: int, processes: int) -> int:
    """The lanes that `auto` stands for: as many as possible up to 8, or up to the processes where these are more.

    Raises Failure(78) where the processes do not divide the batch.
    """
    fitting = [lanes for lanes in divisors(batch) if lanes % processes == 0]
    if not fitting:
        raise Failure(
            Exit.BAD_RECIPE,
            f"{processes} processes do not share a batch of {batch} evenly",
            f"the number of processes may be {', '.join(map(str, divisors(batch)))}",
        )
    return max((lanes for lanes in fitting if lanes <= max(8, processes)), default=fitting[0])
