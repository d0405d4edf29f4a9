"""Several sources in given proportions: which source, and which of its samples, as a pure function of position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import compress
from math import gcd, lcm
from typing import Any

import numpy as np

from drivetrain.data.columns import ROW, Columns, scattered
from drivetrain.data.lane_order import Blocks, InBlocks, LaneDeal, LaneOrder, lane_order_of
from drivetrain.data.order import Order, Sampler
from drivetrain.data.packing import Packed, PackedTogether
from drivetrain.data.recipe import Train
from drivetrain.data.source import Ending, Source
from drivetrain.runtime.mix import mix
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure

LONGEST_PERIOD = 1 << 16
"""Samples after which proportions repeat. Weights that would need more are rounded to this many parts."""


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The weights as the smallest whole numbers in the same proportions; their sum is the period.

    Proportions whose common denominator is beyond `LONGEST_PERIOD` are rounded to it, each to at least one part.
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    denominator = reduce(lcm, (part.denominator for part in exact))
    whole = [int(part * denominator) for part in exact]
    common = reduce(gcd, whole)
    whole = [part // common for part in whole]
    if sum(whole) <= LONGEST_PERIOD:
        return whole
    total = sum(whole)
    rounded = [max(1, part * LONGEST_PERIOD // total) for part in whole]
    # What rounding took or added goes to the largest part, of which it is the smallest share.
    rounded[rounded.index(max(rounded))] += LONGEST_PERIOD - sum(rounded)
    return rounded


@lru_cache(maxsize=32)
def period(weights: tuple[int, ...]) -> np.ndarray:
    """Which source each place of a period takes, int32 [sum of weights]: at every prefix each source's count is less
    than one sample away from its exact share.

    Tijdeman's solution of the chairman assignment problem (R. Tijdeman, "The chairman assignment problem", Discrete
    Mathematics 32, 1980): of the sources that are due enough, the one whose deadline is the nearest.
    """
    total, count = sum(weights), len(weights)
    if count == 1:
        return np.zeros(total, np.int32)
    slack = 2 * count - 2
    taken = [0] * count
    table = np.empty(total, np.int32)
    for place in range(total):
        deadlines: list[tuple[Fraction, int]] = []  # of the sources that are due
        for source, weight in enumerate(weights):
            owed = (weight * (place + 1) - total * taken[source]) * slack
            if owed >= total:
                deadlines.append((Fraction(total * slack - total - owed, weight), source))
        _, chosen = min(deadlines)
        table[place] = chosen
        taken[chosen] += 1
    return table


@dataclass(frozen=True)
class BlendStage:
    """From this position (in samples) on, these weights, one for each source."""

    start: int
    weights: tuple[float, ...]


class _Proportions:
    """One stage's table, and what the sources have given before it began."""

    def __init__(self, start: int, weights: Sequence[float], before: np.ndarray) -> None:
        used = [k for k, weight in enumerate(weights) if weight > 0]
        whole = whole_weights([weights[k] for k in used])
        self.start = start
        self._before = before
        self._table = np.array(used, np.int32)[period(tuple(whole))]
        self._length = len(self._table)
        each = self._table[:, None] == np.arange(len(weights), dtype=np.int32)
        self._counts = np.concatenate([np.zeros((1, len(weights)), np.int64), np.cumsum(each, axis=0)])
        self._first = (before + self._counts[:-1])[np.arange(self._length), self._table]  # of each place, in its source
        self._each = self._counts[-1, self._table]  # how many a period takes of each place's source

    def counts(self, position: int) -> np.ndarray:
        """How many samples each source has given before this position, int64 [sources]."""
        periods, place = divmod(position - self.start, self._length)
        return self._before + periods * self._counts[-1] + self._counts[place]

    def places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source and position within the source, for positions of this stage."""
        periods, places = np.divmod(positions - self.start, self._length)
        return self._table[places], self._first[places] + periods * self._each[places]


class Blend(Sampler):
    """An order over several sources. Sample ids count through the sources: source k's sample i is `offsets[k] + i`.

    Each source has a keyed permutation of its own, so its samples come exactly once per pass whatever its weight is,
    and neither a longer run nor a later stage changes what came before.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        stages: Sequence[BlendStage],
        seed: int,
        shuffle: bool,
        blocks: Sequence[Blocks | None] = (),
    ) -> None:
        """`stages` begin with one at 0, in ascending order; a weight of 0 leaves a source out of a stage. `blocks` are
        those of each source, where some have any."""
        super().__init__()
        self.size = sum(sizes)
        given = [[stage.start, list(stage.weights)] for stage in stages]
        self.metadata = {"sizes": list(sizes), "seed": seed, "shuffle": shuffle, "stages": given}
        blocks = blocks or [None] * len(sizes)
        if any(blocks):
            self.metadata["blocks"] = [each and list(each) for each in blocks]
        self.offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._orders: list[Sampler] = []
        for number, (size, each) in enumerate(zip(sizes, blocks, strict=True)):
            self._orders.append(_own_order(size, mix(seed, number), shuffle, each))
        self._stages: list[_Proportions] = []
        before = np.zeros(len(sizes), np.int64)
        for stage in stages:
            if self._stages:
                before = self._stages[-1].counts(stage.start)
            self._stages.append(_Proportions(stage.start, stage.weights, before))
        self._starts = [stage.start for stage in stages]

    def compute(self, positions: np.ndarray) -> np.ndarray:
        """The sample ids at consecutive positions, int64."""
        ids = np.empty(len(positions), np.int64)
        for part, stage in self._parts(positions):
            sources, places = stage.places(positions[part])
            for source, order in enumerate(self._orders):
                (mine,) = (sources == source).nonzero()
                if len(mine):  # the places are consecutive: a stage goes through each source in order
                    ids[part][mine] = order.compute(places[mine]) + self.offsets[source]
        return ids

    def staged(self, stage: BlendStage) -> Blend:
        """The same order with one more stage; what comes before it stays."""
        metadata = self.metadata
        stages = [stage]
        for start, weights in metadata["stages"]:
            if start != stage.start:  # a second one at the same place is meant instead of the first
                stages.append(BlendStage(start, tuple(weights)))
        stages.sort(key=lambda each: each.start)
        return _blend_of(metadata, stages)

    def weights_at(self, position: int) -> tuple[float, ...]:
        """The sources' weights at a position."""
        return tuple(self.metadata["stages"][bisect_right(self._starts, position) - 1][1])

    def wanted(self, position: int) -> list[bool]:
        """Whether each source has a weight at this position, or at a later one."""
        first = bisect_right(self._starts, position) - 1
        weights = [weights for _, weights in self.metadata["stages"][first:]]
        return [any(each) for each in zip(*weights, strict=True)]

    def coverage(self, position: int) -> list[int]:
        """How many samples of each source lie before this position."""
        return self._stage(position).counts(position).tolist()

    def _stage(self, position: int) -> _Proportions:
        return self._stages[bisect_right(self._starts, position) - 1]

    def _parts(self, positions: np.ndarray) -> Iterator[tuple[slice, _Proportions]]:
        """The stages that consecutive positions meet, each with where they lie in it."""
        cuts = [*np.searchsorted(positions, self._starts).tolist(), len(positions)]
        for stage, first, last in zip(self._stages, cuts, cuts[1:], strict=False):
            if first < last:
                yield slice(first, last), stage


def ordering_of(metadata: Mapping[str, Any]) -> Sampler:
    """The ordering that has this metadata."""
    if "lanes" in metadata:
        return lane_order_of(metadata)
    if "stages" not in metadata:
        return Order(metadata["sizes"][0], metadata["seed"], metadata["shuffle"])
    return _blend_of(metadata, [BlendStage(start, tuple(weights)) for start, weights in metadata["stages"]])


def _blend_of(metadata: Mapping[str, Any], stages: Sequence[BlendStage]) -> Blend:
    """The blend that has this metadata, but for its stages."""
    blocks = [each and Blocks(*each) for each in metadata.get("blocks", ())]
    return Blend(metadata["sizes"], stages, metadata["seed"], metadata["shuffle"], blocks)


def _own_order(size: int, seed: int, shuffle: bool, blocks: Blocks | None) -> Sampler:
    """The order of one source's samples. Where these lie in blocks, it goes from block to block in one stream: which of
    a batch's places are this source's follows from the weights, so lanes have no streams of their own."""
    if blocks is None or not shuffle:
        return Order(size, seed, shuffle)
    return LaneOrder(blocks, LaneDeal(Batches(1), 1), seed)


class BlendSource:
    """Several sources of any kind as one, whose sample ids count through them."""

    def __init__(self, sources: Sequence[Source], fingerprint: str | None = None) -> None:
        self._sources = list(sources)
        self._offsets = np.concatenate([[0], np.cumsum([len(source) for source in sources])]).astype(np.int64)
        self.thread_safe = all(source.thread_safe for source in sources)
        self.fingerprint = fingerprint or "+".join(source.fingerprint for source in sources)

    def __len__(self) -> int:
        """Samples of all sources together."""
        return int(self._offsets[-1])

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Any:
        """The samples with these ids, in this order: one array where every source gives arrays of one shape."""
        owners = self._offsets.searchsorted(ids, side="right") - 1
        present = sorted(set(owners.tolist())) or [0]  # of no samples: what a source gives for none
        parts = []
        for owner in present:
            mine = np.flatnonzero(owners == owner)
            rows = self._sources[owner].read(ids[mine] - self._offsets[owner], positions[mine])
            parts.append((mine, rows))
        if len(parts) == 1:
            return parts[0][1]
        if all(isinstance(rows, np.ndarray) for _, rows in parts):
            return _one_array(parts, len(ids))
        if all(isinstance(rows, Columns) for _, rows in parts):
            arrays = scattered([(mine, rows.arrays) for mine, rows in parts], len(ids))
            return Columns({**arrays, ROW: ids.astype(np.int64)})
        samples: list[Any] = [None] * len(ids)
        for mine, rows in parts:
            for place, row in zip(mine, rows, strict=True):
                samples[place] = row
        return samples


class EndingBlend(BlendSource):
    """Several sources as one, of which some are streams."""

    def there(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples there are, bool of the same shape; a stream's are read for it."""
        return self._each(ids, lambda stream, own: stream.there(own))

    def left(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples no known end has cut off, bool of the same shape."""
        return self._each(ids, lambda stream, own: stream.left(own))

    def _each(self, ids: np.ndarray, ask: Callable[[Ending, np.ndarray], np.ndarray]) -> np.ndarray:
        owners = self._offsets.searchsorted(ids, side="right") - 1
        answer = np.ones(len(ids), bool)
        for number, source in enumerate(self._sources):
            (mine,) = (owners == number).nonzero()
            if len(mine) and isinstance(source, Ending):
                answer[mine] = ask(source, ids[mine] - self._offsets[number])
        return answer


def _one_array(parts: Sequence[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Rows of several arrays at their places; of the widest integer type among them."""
    kind = np.result_type(*(rows.dtype for _, rows in parts))
    whole = np.empty((count, *parts[0][1].shape[1:]), kind)
    for mine, rows in parts:
        whole[mine] = rows
    return whole


def training_order(
    train: Train, sources: Mapping[str, Source], seed: int, scale: Scale, lanes: int, told: Sequence[BlendStage] = ()
) -> tuple[Source, Sampler]:
    """The training sources, by name, as one, and the order of its samples; `told` are stages that were added while it
    trained.

    Raises Failure(78) where stages do not begin one after the other.
    """
    names, opened = list(sources), list(sources.values())
    if len(opened) == 1 and not train.stages:
        return _alone(opened[0], seed, train.shuffle, LaneDeal(scale.batches, lanes))
    stages = [BlendStage(0, tuple(settings.weight for settings in train.sources))]
    for place, stage in enumerate(train.stages):
        start = stage.from_.samples_at(scale)
        if start <= stages[-1].start:
            cause = f"data.train.stages[{place}] begins at sample {start}, not after the one before it"
            raise Failure(Exit.BAD_RECIPE, cause, "list the stages in the order in which they begin, from beyond 0 on")
        weights = [stage.weights.get(name, 0.0) for name in names]
        stages.append(BlendStage(start, tuple(weights)))
    blocks = list(map(_blocks_of, opened))
    order = Blend([len(source) for source in opened], stages, seed, train.shuffle, blocks)
    for stage in told:
        order = order.staged(stage)
    return one_source(opened), order


def _blocks_of(source: Source) -> Blocks | None:
    """The blocks that a source's rows lie in, if they do."""
    if isinstance(source, InBlocks):
        return source.blocks
    return None


def _alone(source: Source, seed: int, shuffle: bool, deal: LaneDeal) -> tuple[Source, Sampler]:
    """One source, and the order of its samples."""
    if not isinstance(source, InBlocks) or not shuffle:
        return source, Order(len(source), seed, shuffle)
    order = LaneOrder(source.blocks, deal, seed)
    return source.following(order), order


def one_source(sources: Sequence[Source]) -> Source:
    """Several sources as one, whose sample ids count through them."""
    packed = [source for source in sources if isinstance(source, Packed)]
    if len(packed) == len(sources):
        return PackedTogether(packed)
    if any(isinstance(source, Ending) for source in sources):
        return EndingBlend(sources)
    return BlendSource(sources)


def coverage(order: Sampler, names: Sequence[str], position: int) -> dict[str, int]:
    """How many samples of each source lie before this position."""
    counts = [position]
    if isinstance(order, Blend):
        counts = order.coverage(position)
    return dict(zip(names, counts, strict=True))


def wanted(order: Sampler, names: Sequence[str], position: int) -> list[str]:
    """The sources that are read at this position, or at a later one."""
    if not isinstance(order, Blend):
        return list(names)
    return list(compress(names, order.wanted(position)))
