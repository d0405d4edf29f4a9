"""Validation: each sample scored once, on all processes, with a stop heard between batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.data.source import Source
from drivetrain.engine.context import WHOLE, positions_of
from drivetrain.engine.engine import Engine, Networks
from drivetrain.engine.placement import Placement
from drivetrain.engine.transfer import to_device
from drivetrain.loop.ends import StopAgreed
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.lane_metrics import LaneMetrics, MetricSets
from drivetrain.loop.step_sync import StepSync
from drivetrain.loop.task import Batch, Task
from drivetrain.runtime.group import Group
from drivetrain.spec.custom import Custom

_EVALUATION, _SHOW, _TRAINING = 1 << 32, 1 << 33, 1 << 34  # seeds: "minimize calls" that no step has
_TRIED = 2  # samples, where the metrics' names are looked for


@dataclass(frozen=True)
class ValidationSet:
    """A source to score, how many samples are taken at a time, and how many are scored: all where None.

    Its blocks are dealt to `lanes` in turn, of which the processes have equal shares; each lane sums up its own. In
    exact mode these are the run's, else there is one for each process.
    """

    name: str
    source: Source
    batch: int
    most: int | None = None
    lanes: int = 1

    @property
    def size(self) -> int:
        """How many samples are scored: always the first ones, so that scores can be compared."""
        return min(self.most or len(self.source), len(self.source))


@dataclass(frozen=True)
class ShownSamples:
    """Samples of which a task shows what it makes: a source, and their numbers there."""

    source: Source
    ids: np.ndarray


@dataclass(frozen=True)
class Scores:
    """One evaluation: {set: {metric: value}} and {set: samples}. A set of which no metric has gathered anything has no
    values."""

    metrics: dict[str, dict[str, float]]
    counts: dict[str, int]


class Evaluator:
    """Scores sets on all processes, with a stop heard between batches."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        group: Group,
        placement: Placement,
        sync: StepSync,
        customs: Mapping[str, Custom] = MappingProxyType({}),
    ) -> None:
        """`group` are all ranks; those at different places in the batch, as `placement` has them, share out lanes.
        `customs` are the recipe's metrics, by name."""
        self._task = task
        self._metrics = MetricSets(task, customs)
        self._engine = engine
        self._group = group
        self._placement = placement
        self._sync = sync
        self._positions, self._speaks = WHOLE, placement.speaks
        if task.scores_parts:
            self._positions = positions_of(engine.networks.values())
            self._speaks = placement.mesh.speaks_of_positions

    def score(self, sets: Sequence[ValidationSet], step: int) -> Scores:
        """Score all sets at a step. Every rank calls it, and has the same result.

        Lanes take blocks of a set in turn; the last blocks may be short or missing, and nothing is scored twice. The
        metrics' states are merged in the order of the lanes. Raises StopAgreed where a stop was asked for on the way.
        """
        scores = Scores({}, {})
        with self._engine.evaluating() as networks:
            for number, validation in enumerate(sets):
                lanes = self._lanes(validation, networks, step, number)
                # Ranks at one place in the batch have scored the same samples, but for those of which they have parts.
                merged = self._metrics.merged(lanes, self._group, speaks=self._speaks)
                scores.metrics[validation.name] = self._metrics.values(merged)
                scores.counts[validation.name] = validation.size
            self._engine.heartbeat.enter("show")  # what follows an evaluation is told apart from it, in telemetry too
        return scores

    def score_batch(self, batch: LocalBatch) -> dict[str, float]:
        """Score what a step is about to learn from. Every rank calls it, with its own part, and has the same result;
        nothing that the step does is changed by it. Empty where no metric has gathered anything."""
        engine = self._engine
        lanes: dict[int, LaneMetrics] = {}
        missing = self._missing(len(batch.micro_batches))  # before the passes, in which ranks talk to each other
        with engine.evaluating() as networks:
            for micro in batch.micro_batches:
                # By lane and not by rank: in exact mode the sums then come in one order on any number of processes.
                if micro.lane not in lanes:
                    lanes[micro.lane] = self._metrics.fresh(engine.device)
                engine.seed(batch.step, _TRAINING, micro.start)
                self._add(micro.batch, networks, lanes[micro.lane])
            for _ in range(missing):
                assert batch.spare is not None, "whoever holds a part of what is computed gives one"
                self._add(batch.spare.batch, networks, self._metrics.fresh(engine.device))
        merged = self._metrics.merged([*lanes.values()], self._group, speaks=self._speaks)
        return self._metrics.values(merged)

    def show(self, samples: ShownSamples, step: int, gallery: Gallery | None) -> None:
        """Let the task put into the gallery, which one rank has, what it makes of samples. Every rank calls it."""
        engine = self._engine
        with engine.evaluating() as networks:
            engine.heartbeat.enter("show")
            if gallery is None and not self._placement.replicated:
                gallery = Gallery(None, step)  # all ranks compute what one of them keeps
            if gallery and len(samples.ids):
                engine.seed(step, _SHOW)
                batch = to_device(self._task.collate(samples.source.read(samples.ids, samples.ids)), engine.device)
                self._task.show(networks, batch, gallery)
            self._group.barrier()  # it may take long: the others wait here, where that is known to be no hang

    def metrics_of(self, validation: ValidationSet) -> list[str]:
        """What a set is scored by, also losses, whose names are known once they were computed: its first samples are
        scored for that. Empty where that gathers nothing. Every rank calls it."""
        metrics, ids = self._metrics.fresh(self._engine.device), np.arange(min(_TRIED, validation.size), dtype=np.int64)
        with self._engine.evaluating() as networks:
            if len(ids):
                self._engine.seed(0, _EVALUATION)
                self._score(validation, ids, networks, metrics)
        return list(self._metrics.values(metrics, few=True))

    def _lanes(self, validation: ValidationSet, networks: Networks, step: int, number: int) -> list[LaneMetrics]:
        """The metrics of each of this rank's lanes, over all blocks of a set."""
        engine, own = self._engine, validation.lanes // self._placement.data.world
        metrics = [self._metrics.fresh(engine.device) for _ in range(own)]
        for place, (block, ids) in enumerate(_blocks(validation, self._placement.data)):
            engine.heartbeat.enter("evaluation")
            self._sync.send()  # it travels while the block is scored
            engine.seed(step, _EVALUATION + number, block)
            if len(ids):  # a rank without samples still hears the others: there are as many rounds on each
                self._score(validation, ids, networks, metrics[place % own])
            elif not self._placement.replicated:  # the others cannot compute without what this rank holds
                first = np.arange(min(validation.batch, validation.size), dtype=np.int64)
                self._score(validation, first, networks, self._metrics.fresh(engine.device))
            if self._sync.receive().end:
                raise StopAgreed
        return metrics

    def _score(self, validation: ValidationSet, ids: np.ndarray, networks: Networks, metrics: LaneMetrics) -> None:
        """Score these samples of a set, as one batch."""
        self._add(self._task.collate(validation.source.read(ids, ids)), networks, metrics)

    def _add(self, batch: Batch, networks: Networks, metrics: LaneMetrics) -> None:
        """Score a batch."""
        batch = to_device(self._positions.cut(batch), self._engine.device)
        with self._positions.given():
            self._metrics.feed(metrics, self._task.evaluate(networks, batch, metrics.filled))

    def _missing(self, passes: int) -> int:
        """How many passes more another rank makes, which cannot make them without what this one holds."""
        if self._placement.replicated:
            return 0
        return self._group.most(passes) - passes


def _blocks(validation: ValidationSet, group: Group) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks of this rank's lanes, lane by lane in each round: number and sample ids. There are as many on every
    rank, some of them short or empty."""
    size, batch, lanes = validation.size, validation.batch, validation.lanes
    # Rounds are the same on all ranks, so that each pulse finds all of them, also where the last blocks are empty.
    own = lanes // group.world
    for round_ in range(-(-size // (batch * lanes))):
        first = round_ * lanes + group.rank * own
        for block in range(first, first + own):
            start, stop = block * batch, (block + 1) * batch
            yield block, np.arange(min(start, size), min(stop, size), dtype=np.int64)
