"""Rows that lie in blocks, in an order that is shuffled and still goes from block to block: each lane has a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from drivetrain.data.order import GOLDEN, Order, Sampler, mix64
from drivetrain.data.source import Source
from drivetrain.runtime.mix import mix
from drivetrain.spec.batches import Batches, Change

_BLOCKS, _WINDOWS = 1 << 37, 1 << 38
"""Places in the seeds' path that nothing else has."""
_KEPT = 2
"""Epochs, and windows of each lane, that are kept: the current ones, and those that are looked at ahead."""
_WHOLE = 8
"""Lanes of which the order of whole windows is kept: of more it would take memory that grows with them."""


class Blocks(NamedTuple):
    """How rows lie in blocks, as JSON data: pairs of a number of rows and how many blocks, one after the other, have
    as many; and the rows of a `window`, which are shuffled at a time."""

    runs: Sequence[Sequence[int]]
    window: int

    @classmethod
    def of(cls, sizes: np.ndarray, window: int) -> Blocks:
        """Those of so many rows (int64) each."""
        runs = np.split(sizes, np.flatnonzero(np.diff(sizes)) + 1)
        return cls([[int(run[0]), len(run)] for run in runs if len(run)], window)

    @property
    def sizes(self) -> np.ndarray:
        """The rows of each block, int64."""
        rows, counts = np.array(self.runs, np.int64).T
        return np.repeat(rows, counts)


@dataclass(frozen=True)
class LaneDeal:
    """Which positions are which lane's: lane k has the k-th share of each batch, as `Geometry` cuts it."""

    batches: Batches
    lanes: int

    def before(self, position: int) -> np.ndarray:
        """How many positions before this one each lane has, int64 [lanes]."""
        start, stop = self.batches.span(max(1, self.batches.steps(position)))
        share = (stop - start) // self.lanes
        return start // self.lanes + np.clip(position - start - np.arange(self.lanes) * share, 0, share)

    def lane_of(self, positions: np.ndarray) -> np.ndarray:
        """The lanes of consecutive positions, int64."""
        lanes = np.empty(len(positions), np.int64)
        starts = [self.batches.samples(change.after) for change in self.batches.ramp]
        cuts = [0, *positions.searchsorted(starts).tolist(), len(positions)]
        for start, size, first, last in zip([0, *starts], self.batches.sizes, cuts, cuts[1:], strict=False):
            lanes[first:last] = (positions[first:last] - start) % size // (size // self.lanes)
        return lanes

    def lanes_of(self, positions: np.ndarray) -> list[int]:
        """The lanes that read these consecutive positions (int64)."""
        return np.unique(self.lane_of(positions)).tolist()


class _Epoch(NamedTuple):
    """One pass: its blocks in their order and how many rows lie before each; the rows before each lane's stream, and
    how many positions each lane has had before the pass."""

    blocks: np.ndarray
    ends: np.ndarray
    streams: np.ndarray
    before: np.ndarray


class Window(NamedTuple):
    """A stretch of a lane's stream that is shuffled: rows [start, stop) of an epoch's blocks, one after the other."""

    epoch: int
    start: int
    stop: int


class Run(NamedTuple):
    """Places [start, stop) of a window, in the order in which it is read."""

    window: Window
    start: int
    stop: int


class LaneOrder(Sampler):
    """The rows of blocks, each once an epoch.

    The blocks are permuted for each epoch and laid end to end; each lane takes as long a stretch of that as it has
    positions in the epoch, and goes through it in windows, which are permuted. So a lane reads from few blocks at a
    time, and what it reads follows from seed and position, whoever reads it. Lanes begin their windows one after the
    other, so that not all of them want new blocks at once.
    """

    def __init__(self, blocks: Blocks, deal: LaneDeal, seed: int) -> None:
        super().__init__()
        sizes = blocks.sizes
        self.size, self.deal, self.window = int(sizes.sum()), deal, blocks.window
        self.metadata = {"sizes": [self.size], "seed": seed, "shuffle": True, "blocks": list(blocks)}
        self.metadata |= {"lanes": deal.lanes, "batch": deal.batches.size}
        self.metadata |= {"ramp": [list(change) for change in deal.batches.ramp]}
        self._blocks, self._sizes, self._seed = blocks, sizes, seed
        self._firsts = np.cumsum(sizes) - sizes
        self._epoch = lru_cache(maxsize=_KEPT)(self._make_epoch)
        self._places = lru_cache(maxsize=_KEPT * deal.lanes)(self._make_places)
        self.shuffled = lru_cache(maxsize=_KEPT * _WHOLE)(
            lambda window: self._rows_at(window, 0, window.stop - window.start)
        )
        """Which row of a window is read first, second ...: int64, counted from its start. Not to be written to."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process makes it anew."""
        return LaneOrder, (self._blocks, self.deal, self._seed)

    def compute(self, positions: np.ndarray) -> np.ndarray:
        """The sample ids at consecutive positions, int64."""
        ids = np.empty(len(positions), np.int64)
        first, stop = int(positions[0]), int(positions[-1]) + 1
        for number in range(first // self.size, (stop - 1) // self.size + 1):
            # A batch may lie across the end of an epoch, or in small data across several.
            begin, end = max(first, number * self.size), min(stop, (number + 1) * self.size)
            ids[begin - first : end - first] = self._of_epoch(number, positions[begin - first : end - first])
        return ids

    def gives(self, ids: np.ndarray, positions: np.ndarray) -> bool:
        """Whether these are the rows at these positions, which have no hole."""
        if not len(ids):
            return False
        first, last = int(positions[0]), int(positions[-1])
        return last - first == len(ids) - 1 and np.array_equal(self.ids(first, last + 1), ids)

    def runs(self, first: int, stop: int) -> Iterator[Run]:
        """What of which windows the positions [first, stop) read, in their order."""
        while first < stop:
            begin, end = self.deal.batches.span(self.deal.batches.steps(first + 1))
            share = (end - begin) // self.deal.lanes
            lane, number = (first - begin) // share, first // self.size
            last = min(stop, begin + (lane + 1) * share, (number + 1) * self.size)
            epoch = self._epoch(number)
            at = begin // self.deal.lanes + first - begin - lane * share - int(epoch.before[lane])
            for window in self._windows(number, lane, at):
                place = int(epoch.streams[lane]) + at - window.start
                taken = min(last - first, window.stop - window.start - place)
                yield Run(window, place, place + taken)
                first, at = first + taken, at + taken
                if first == last:
                    break

    def windows_ahead(self, position: int, lanes: Iterable[int], rows: int) -> list[Window]:
        """The windows that these lanes read from the step of a position on, until they have read so many rows together;
        in the order in which they are needed, about."""
        start, stop = self.deal.batches.span(self.deal.batches.steps(position + 1))
        share, each = (stop - start) // self.deal.lanes, -(-rows // len(lanes := sorted(lanes)))
        found = [self._lane_ahead(start + lane * share, lane, each) for lane in lanes]
        return [window for windows in zip_longest(*found) for window in windows if window is not None]

    def pieces(self, window: Window) -> list[tuple[int, int, int]]:
        """What a window has of which blocks, in the order of its rows before they are shuffled: block, first row of it
        and that behind the last."""
        epoch, found = self._epoch(window.epoch), []
        at = int(epoch.ends.searchsorted(window.start, "right")) - 1
        while (first := int(epoch.ends[at])) < window.stop:
            stop = min(int(epoch.ends[at + 1]), window.stop)
            if stop > first:
                found.append((int(epoch.blocks[at]), max(window.start - first, 0), stop - first))
            at += 1
            if at == len(epoch.blocks):
                break
        return found

    def _lane_ahead(self, position: int, lane: int, rows: int) -> list[Window]:
        """The window of a position of this lane, and those after it that so many rows of its stream reach into."""
        number = position // self.size
        at = int((self.deal.before(position) - self._epoch(number).before)[lane])
        found: list[Window] = []
        while rows > 0:
            begin = int(self._epoch(number).streams[lane])
            for window in self._windows(number, lane, at):
                if rows > 0:
                    found.append(window)
                rows -= window.stop - max(window.start, begin + at)
            number, at = number + 1, 0
        return found

    def _of_epoch(self, number: int, positions: np.ndarray) -> np.ndarray:
        """The ids at consecutive positions of one epoch."""
        epoch = self._epoch(number)
        lanes = self.deal.lane_of(positions)
        had = self.deal.before(int(positions[0])) - epoch.before
        order = np.argsort(lanes, kind="stable")
        ids = np.empty(len(positions), np.int64)
        for mine in np.split(order, np.flatnonzero(np.diff(lanes[order])) + 1):
            lane = int(lanes[mine[0]])
            ids[mine] = self._stretch(number, lane, int(had[lane]), len(mine))
        return ids

    def _stretch(self, number: int, lane: int, first: int, count: int) -> np.ndarray:
        """The ids at so many places of a lane's stream, from the first on."""
        parts = []
        for window in self._windows(number, lane, first):
            begin = int(self._epoch(number).streams[lane]) + first - window.start
            taken = min(count, window.stop - window.start - begin)
            if self.deal.lanes <= _WHOLE:
                rows = self.shuffled(window)[begin : begin + taken]
            else:
                rows = self._rows_at(window, begin, begin + taken)
            parts.append(self._ids(window, rows))
            first, count = first + taken, count - taken
            if not count:
                break
        return np.concatenate(parts)

    def _rows_at(self, window: Window, first: int, stop: int) -> np.ndarray:
        """What stands at places [first, stop) of a window, in the order in which it is read."""
        return self._places(window).compute(np.arange(first, stop))

    def _ids(self, window: Window, rows: np.ndarray) -> np.ndarray:
        """The sample ids of rows (int64) of a window, counted from its start."""
        epoch = self._epoch(window.epoch)
        first, last = (epoch.ends.searchsorted([window.start, window.stop - 1], "right") - 1).tolist()
        rows = rows + window.start
        # Within a block of the epoch, ids and places differ by a constant.
        shifts = self._firsts[epoch.blocks[first : last + 1]] - epoch.ends[first : last + 1]
        if first == last:
            return rows + shifts[0]
        return rows + shifts[epoch.ends[first + 1 : last + 1].searchsorted(rows, "right")]

    def _windows(self, number: int, lane: int, first: int) -> Iterator[Window]:
        """A lane's windows of an epoch, from that on which a place of its stream lies in."""
        streams = self._epoch(number).streams
        start, stop = int(streams[lane]), int(streams[lane + 1])
        # Multiples of the golden ratio are spread evenly, whichever lanes a process has.
        late = (lane * GOLDEN % (1 << 64)) * self.window >> 64
        at = start + first
        while at < stop:
            window = (at - start + late) // self.window
            # The first window of a lane is cut short by `late`, the last one by the stream's end.
            begin, end = window * self.window - late, (window + 1) * self.window - late
            yield Window(number, start + max(begin, 0), min(start + end, stop))
            at = start + end

    def _make_epoch(self, number: int) -> _Epoch:
        # Sorted by a hash of the block's number: a permutation that every rank makes alike, and that no library's
        # version of a shuffle can change.
        key = np.uint64(mix(self._seed, _BLOCKS, number))
        blocks = np.argsort(mix64(np.arange(len(self._sizes), dtype=np.uint64) ^ key))
        ends = np.concatenate([[0], np.cumsum(self._sizes[blocks])])
        before = self.deal.before(number * self.size)
        # Not size // lanes: an epoch may begin and end within a batch, and then lanes have had different numbers of it.
        lengths = self.deal.before((number + 1) * self.size) - before
        return _Epoch(blocks, ends, np.concatenate([[0], np.cumsum(lengths)]), before)

    def _make_places(self, window: Window) -> Order:
        return Order(window.stop - window.start, mix(self._seed, _WINDOWS, window.epoch, window.start), True)


@runtime_checkable
class InBlocks(Protocol):
    """A source whose samples lie in blocks, so that it costs less to go from block to block."""

    @property
    def blocks(self) -> Blocks:
        """How they lie."""
        ...

    def following(self, order: LaneOrder) -> Source:
        """The same samples, for one who reads them in this order."""
        ...


def lane_order_of(metadata: Mapping[str, Any]) -> LaneOrder:
    """The order that has this metadata."""
    batches = Batches(metadata["batch"], tuple(Change(*change) for change in metadata["ramp"]))
    return LaneOrder(Blocks(*metadata["blocks"]), LaneDeal(batches, metadata["lanes"]), metadata["seed"])
