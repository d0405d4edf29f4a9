"""Which lane reads which samples of a stream, and how far each of them went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from drivetrain.data.source import ENDLESS
from drivetrain.spec.batches import Batches


@dataclass(frozen=True)
class Deal:
    """Which lane reads which samples, of a stream that is read in parts: lane k's are those of its places in the steps,
    so that they are the same on any number of processes."""

    batches: Batches
    lanes: int

    def places(self, ids: np.ndarray) -> Iterator[tuple[slice, int, int]]:
        """Runs of consecutive ids: where they stand among these, their lane, and the number of the first one there."""
        at = 0
        while at < len(ids):
            first = int(ids[at])
            start, stop = self.batches.span(self.batches.steps(first + 1))
            share = (stop - start) // self.lanes
            lane, offset = divmod(first - start, share)
            last = at + int(np.searchsorted(ids[at:], start + (lane + 1) * share))
            yield slice(at, last), lane, start // self.lanes + offset
            at = last


def before_ends(ids: np.ndarray, ends: Mapping[int, int], deal: Deal | None) -> np.ndarray:
    """Which samples of a stream (int64, ascending) come before the ends of their lanes, as far as these are known."""
    if deal is None:
        return ids < ends.get(0, ENDLESS)
    kept = np.ones(len(ids), bool)
    for place, lane, first in deal.places(ids) if ends else ():
        kept[place] = first + (ids[place] - ids[place][0]) < ends.get(lane, ENDLESS)
    return kept
