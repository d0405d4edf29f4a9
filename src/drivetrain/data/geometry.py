"""How a global batch is cut: lanes, processes, micro-batches. Plain arithmetic on positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from drivetrain.spec.exits import Exit, Failure


class Chunk(NamedTuple):
    """A micro-batch: positions [start, stop); `lane` is its first sample's, `part` counts within that lane."""

    start: int
    stop: int
    lane: int
    part: int


@dataclass(frozen=True)
class Geometry:
    """A batch of `batch` samples on `lanes` lanes, shared by `processes`, at most `micro` samples at a time.

    `processes` divides `lanes` divides `batch`. Lane k of a step holds its positions [k, k + 1) * batch / lanes.
    """

    batch: int
    lanes: int
    processes: int
    micro: int

    def __post_init__(self) -> None:
        if self.batch % self.lanes:
            raise Failure(
                Exit.BAD_RECIPE,
                f"batch.size {self.batch} is not a multiple of lanes {self.lanes}",
                f"lanes may be {', '.join(map(str, divisors(self.batch)))}",
            )
        if self.lanes % self.processes:
            raise Failure(
                Exit.BAD_RECIPE,
                f"{self.processes} processes do not share {self.lanes} lanes evenly",
                f"the number of processes may be {', '.join(map(str, divisors(self.lanes)))}",
            )

    def share(self, rank: int, start: int, stop: int) -> list[Chunk]:
        """The micro-batches of a rank in the step that covers the positions [start, stop).

        In a ragged last step, where stop - start < batch, lanes keep their places; the last ones are short or empty.
        """
        own = self.batch // self.processes
        lane_size = self.batch // self.lanes
        first, last = start + rank * own, min(start + (rank + 1) * own, stop)
        chunks: list[Chunk] = []
        for at in range(first, last, self.micro):
            lane = (at - start) // lane_size
            part = chunks[-1].part + 1 if chunks and chunks[-1].lane == lane else 0
            chunks.append(Chunk(at, min(at + self.micro, last), lane, part))
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
