"""How a global batch is cut: lanes, processes, micro-batches. Plain arithmetic on positions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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

    `processes` divides `lanes` divides each batch. Lane k of a step holds its positions [k, k + 1) * batch / lanes, or
    what `Batches.shares` says where lanes are not even; there no micro-batch spans two of them. With lanes `apart` none
    does either, and there are a power of two.
    """

    batches: Batches
    lanes: int
    processes: int
    micro: int | None
    apart: bool = False

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
        if self.apart:
            self._require_apart()

    def _require_apart(self) -> None:
        if self.lanes & (self.lanes - 1):
            cause = f"exact: {self.lanes} lanes are no power of two"
            raise Failure(Exit.BAD_RECIPE, cause, "give lanes (and processes) as 1, 2, 4, 8 ...")
        share = gcd(*self.batches.sizes) // self.lanes
        if self.micro and self.batches.even and share % self.micro:
            cause = f"exact: micro-batches of {self.micro} would span lanes of {share} samples"
            raise Failure(Exit.BAD_RECIPE, cause, f"batch.micro may be {', '.join(map(str, divisors(share)))}")

    def bounds(self, step: int) -> Sequence[int]:
        """Where the processes' shares of a step begin, and where the last one ends."""
        return self.batches.shares(step, self.lanes)[:: self.lanes // self.processes]

    def share(self, rank: int, step: int, total: int) -> list[Chunk]:
        """The micro-batches of a rank in a step of a run that ends at position `total`.

        In a ragged last step, which ends before its batch is full, lanes keep their places; the last ones are short or
        empty.
        """
        # By the full batch, also where the run ends within it: a lane's samples are the same in every world.
        shares, each = self.batches.shares(step, self.lanes), self.lanes // self.processes
        own = shares[rank * each : (rank + 1) * each + 1]
        stretches = [(own[0], own[-1])]
        if self.apart or not self.batches.even:
            stretches = list(pairwise(own))
        chunks: list[Chunk] = []
        for first, last in stretches:
            last = min(last, total)
            micro = self.micro or max(1, last - first)
            for at in range(first, last, micro):
                lane, part = bisect_right(shares, at) - 1, 0
                if chunks and chunks[-1].lane == lane:
                    part = chunks[-1].part + 1
                chunks.append(Chunk(at, min(at + micro, last), lane, part))
        return chunks


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def choose_lanes(batch: int, processes: int, *, apart: bool = False) -> int:
    """The lanes that `auto` stands for: as many as possible up to 8, or up to the processes where these are more.

    With lanes `apart` (`batch` counts micro-batches) it is a power of two, and so are the processes that may share it.
    Raises Failure(78) where the processes do not divide the batch.
    """
    allowed = [lanes for lanes in divisors(batch) if not (apart and lanes & (lanes - 1))]
    fitting = [lanes for lanes in allowed if lanes % processes == 0]
    if not fitting:
        what = f"a batch of {batch}"
        if apart:
            what = f"{batch} micro-batches in lanes of exact mode"
        raise Failure(
            Exit.BAD_RECIPE,
            f"{processes} processes do not share {what} evenly",
            f"the number of processes may be {', '.join(map(str, allowed))}",
        )
    return max((lanes for lanes in fitting if lanes <= max(8, processes)), default=fitting[0])
