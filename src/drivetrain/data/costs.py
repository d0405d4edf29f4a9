"""Batches of samples that each cost something: as many as a total cost allows, as a function of position."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from drivetrain.data.order import Sampler
from drivetrain.data.source import Source
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure

_POSITIONS = 1 << 16
"""Positions that are cut at a time."""


@runtime_checkable
class Costed(Protocol):
    """A source whose samples cost something."""

    def costs(self) -> np.ndarray | None:
        """What each sample costs, int64 [samples], at least 0; None where nobody has said it. Raises Failure(65)."""
        ...


@dataclass(frozen=True)
class CostBatches(Batches):
    """Steps of as many samples as a total cost allows, at most `size`.

    The samples follow each other in the run's order. A lane's share of a step is the longest run of them that costs at
    most `cost / lanes` and has at most `size / lanes`; the next share begins behind it, and `lanes` shares are a step.
    So where a step begins follows from order and costs alone, whoever reads it, and no share is empty. The cuts are
    found as they are asked for, from the first one on, and never change.
    """

    cuts: Cuts = field(kw_only=True)
    before: int = field(default=0, kw_only=True)
    """Steps that are passed over: these are counted from there."""

    @property
    def even(self) -> bool:
        """Whether lanes have as many samples as each other: no."""
        return False

    def span(self, step: int) -> tuple[int, int]:
        """The positions [start, stop) of a step; the first one is 1."""
        shares = self.shares(step, self.cuts.lanes)
        return shares[0], shares[-1]

    def shares(self, step: int, lanes: int) -> Sequence[int]:
        """Where the lanes' shares of a step begin, and where the last one ends."""
        start = (self.before + step - 1) * lanes
        self.cuts.grow_to(count=start + lanes)
        first = self._first
        return [cut - first for cut in self.cuts.found[start : start + lanes + 1]]

    def samples(self, steps: int) -> int:
        """How many samples the first steps take."""
        self.cuts.grow_to(count=(self.before + steps) * self.cuts.lanes)
        return self.cuts.found[(self.before + steps) * self.cuts.lanes] - self._first

    def steps(self, samples: int) -> int:
        """How many steps it takes to have consumed as many samples."""
        position = self._first + samples
        self.cuts.grow_to(position=position)
        return -(-bisect_left(self.cuts.found, position) // self.cuts.lanes) - self.before

    def since(self, steps: int) -> CostBatches:
        """The batches that come after so many steps, counted from there."""
        return replace(self, before=self.before + steps)

    @property
    def _first(self) -> int:
        """The samples that are passed over."""
        self.cuts.grow_to(count=self.before * self.cuts.lanes)
        return self.cuts.found[self.before * self.cuts.lanes]


class Cuts:
    """Where shares end, in an order of samples that cost something."""

    def __init__(self, order: Sampler, costs: np.ndarray, lanes: int, most: int, longest: int) -> None:
        """`costs` are int64 by sample id, none above `most`, which a share may cost; it has at most `longest`."""
        self.lanes = lanes
        self.found: list[int] = [0]
        self._order, self._costs, self._most, self._longest = order, costs, most, longest
        self._lock = threading.Lock()  # a thread that reads ahead asks beside the loop

    def grow_to(self, count: int = 0, position: int = 0) -> None:
        """Find so many cuts, and up to this position."""
        if len(self.found) > count and self.found[-1] >= position:
            return
        with self._lock:
            while len(self.found) <= count or self.found[-1] < position:
                self._grow()

    def _grow(self) -> None:
        """The cuts of the next positions. More of these are looked at than a share can have, so there is one."""
        start = self.found[-1]
        positions = np.arange(start, start + max(_POSITIONS, 2 * self._longest), dtype=np.int64)
        sums = np.concatenate([[0], np.cumsum(self._costs[self._order.compute(positions)])])
        begin = 0
        while begin + self._longest < len(positions):
            # Samples that cost nothing are taken along, whatever the sum is.
            by_cost = int(sums.searchsorted(sums[begin] + self._most, "right")) - 1
            begin = min(by_cost, begin + self._longest)
            self.found.append(start + begin)


def cost_batches(size: int, cost: int, lanes: int, sources: Mapping[str, Source], order: Sampler) -> CostBatches:
    """Steps of at most `size` samples of these sources, by name, that cost at most `cost`.

    Raises Failure(78) where a source does not say what its samples cost, or a lane's share has no room for the dearest.
    """
    parts = []
    for name, source in sources.items():
        own = source.costs() if isinstance(source, Costed) else None
        if own is None:
            cause = f"batch.cost: source {name} does not say what its samples cost"
            raise Failure(Exit.BAD_RECIPE, cause, "give `cost: {column: NAME, most: N}` to a source of kind columns")
        parts.append(own)
    costs, most = np.concatenate(parts), cost // lanes
    dearest = int(costs.max())
    if dearest > most:
        cause = f"batch.cost {cost} is {most} for each of {lanes} lanes, and a sample costs {dearest}"
        raise Failure(Exit.BAD_RECIPE, cause, f"give at least {dearest * lanes}, or fewer lanes, or a smaller `most`")
    return CostBatches(size, cuts=Cuts(order, costs, lanes, most, size // lanes))
