"""Validation: each sample scored once, on all processes, with a stop heard between batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drivetrain.data.source import Source
from drivetrain.engine.engine import Engine, Networks
from drivetrain.engine.placement import Placement
from drivetrain.engine.transfer import to_device
from drivetrain.loop.ends import StopAgreed
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Metric
from drivetrain.loop.step_sync import StepSync
from drivetrain.loop.task import Task
from drivetrain.runtime.group import Group

_EVALUATION, _SHOW = 1 << 32, 1 << 33  # seeds: "minimize calls" that no step has


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
class Scores:
    """One evaluation: {set: {metric: value}} and {set: samples}."""

    metrics: dict[str, dict[str, float]]
    counts: dict[str, int]


class Evaluator:
    """Scores sets on all processes, with a stop heard between batches."""

    def __init__(self, task: Task, engine: Engine, group: Group, placement: Placement, sync: StepSync) -> None:
        """`group` are all ranks; those at different places in the batch, as `placement` has them, share out lanes."""
        self._task = task
        self._engine = engine
        self._group = group
        self._placement = placement
        self._sync = sync

    def score(self, sets: Sequence[ValidationSet], step: int, gallery: Gallery | None = None) -> Scores:
        """Score all sets at a step. Every rank calls it, and has the same result.

        Lanes take blocks of a set in turn; the last blocks may be short or missing, and nothing is scored twice. The
        metrics' states are merged in the order of the lanes. Where there is a gallery (on one rank only), the task may
        put into it what it makes of the first set's first samples. Raises StopAgreed where a stop was asked for on the
        way.
        """
        scores = Scores({}, {})
        with self._engine.evaluating() as networks:
            for number, validation in enumerate(sets):
                merged = self._merged(self._lanes(validation, networks, step, number))
                scores.metrics[validation.name] = {name: metric.value() for name, metric in merged.items()}
                scores.counts[validation.name] = validation.size
            self._engine.heartbeat.enter("show")
            if gallery:
                self._show(sets[0], step, gallery)
        return scores

    def _lanes(
        self, validation: ValidationSet, networks: Networks, step: int, number: int
    ) -> list[Mapping[str, Metric]]:
        """The metrics of each of this rank's lanes, over all blocks of a set."""
        engine, own = self._engine, validation.lanes // self._placement.data.world
        metrics: list[Mapping[str, Metric]] = [self._task.metrics() for _ in range(own)]
        for place, (block, ids) in enumerate(_blocks(validation, self._placement.data)):
            engine.heartbeat.enter("evaluation")
            self._sync.send()  # it travels while the block is scored
            if len(ids):  # a rank without samples still hears the others: there are as many rounds on each
                engine.seed(step, _EVALUATION + number, block)
                batch = to_device(self._task.collate(validation.source.read(ids, ids)), engine.device)
                self._task.evaluate(networks, batch, metrics[place % own])
            if self._sync.receive().end:
                raise StopAgreed
        return metrics

    def _merged(self, lanes: Sequence[Mapping[str, Metric]]) -> Mapping[str, Metric]:
        """Metrics of all ranks' lanes, added up in their order."""
        if self._group.world == len(lanes) == 1:
            return lanes[0]
        total = self._task.metrics()
        own: list[dict[str, list[float]]] = []
        if self._placement.speaks:  # ranks at one place in the batch have scored the same samples
            for lane in lanes:
                own.append({name: metric.state() for name, metric in lane.items()})
        # Ranks in order, and each one's lanes in order: that is the order of all lanes, however they are shared out.
        for states in self._group.gather_json(own):
            for state in states:
                for name, metric in total.items():
                    metric.merge(state[name])
        return total

    def _show(self, validation: ValidationSet, step: int, gallery: Gallery) -> None:
        """Let the task show what it makes of a set's first samples."""
        task, engine = self._task, self._engine
        engine.seed(step, _SHOW)
        count = validation.batch if task.shown is None else task.shown
        ids = np.arange(min(count, validation.size), dtype=np.int64)
        if len(ids):
            batch = to_device(task.collate(validation.source.read(ids, ids)), engine.device)
            task.show(engine.networks, batch, gallery)


def _blocks(validation: ValidationSet, group: Group) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks of this rank's lanes, lane by lane in each round: number and sample ids. There are as many on every
    rank, some of them short or empty."""
    size, batch, lanes = validation.size, validation.batch, validation.lanes
    own = lanes // group.world
    for round_ in range(-(-size // (batch * lanes))):
        first = round_ * lanes + group.rank * own
        for block in range(first, first + own):
            start, stop = block * batch, (block + 1) * batch
            yield block, np.arange(min(start, size), min(stop, size), dtype=np.int64)
