"""Validation: each sample scored once, on all processes, with a stop heard between batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drivetrain.data.source import Source
from drivetrain.engine.engine import Engine
from drivetrain.engine.transfer import to_device
from drivetrain.loop.exchange import Exchange
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Metric
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


def evaluate(
    task: Task,
    engine: Engine,
    sets: list[ValidationSet],
    group: Group,
    exchange: Exchange,
    step: int,
    gallery: Gallery | None = None,
) -> Scores | None:
    """Score all sets at a step; None where a stop was asked for on the way.

    Where there is a gallery (on one rank only), the task may put into it what it makes of the first set's first ones.

    Lanes take blocks of a set in turn; the last blocks may be short or missing, and nothing is scored twice.
    The metrics' states are merged in the order of the lanes, so every rank has the same result.
    """
    scores = Scores({}, {})
    with engine.evaluating() as networks:
        for number, validation in enumerate(sets):
            metrics = [task.metrics() for _ in range(validation.lanes // group.world)]
            for place, (block, ids) in enumerate(_blocks(validation, group)):
                engine.heart.enter("evaluation")
                exchange.send()
                if len(ids):
                    engine.seed(step, _EVALUATION + number, block)
                    batch = to_device(task.collate(validation.source.read(ids, ids)), engine.device)
                    task.evaluate(networks, batch, metrics[place % len(metrics)])
                if exchange.receive().end:
                    return None
            merged = _merged(task, metrics, group)
            scores.metrics[validation.name] = {name: metric.value() for name, metric in merged.items()}
            scores.counts[validation.name] = validation.size
        engine.heart.enter("show")
        if gallery:
            _show(task, engine, sets[0], step, gallery)
    return scores


def _show(task: Task, engine: Engine, validation: ValidationSet, step: int, gallery: Gallery) -> None:
    engine.seed(step, _SHOW)
    count = validation.batch if task.shown is None else task.shown
    ids = np.arange(min(count, validation.size), dtype=np.int64)
    if not len(ids):
        return
    batch = to_device(task.collate(validation.source.read(ids, ids)), engine.device)
    task.show(engine.networks, batch, gallery)


def _blocks(validation: ValidationSet, group: Group) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks of this rank's lanes, lane by lane in each round: number and sample ids. There are as many on every
    rank, some of them short or empty."""
    size, batch, lanes = validation.size, validation.batch, validation.lanes
    own = lanes // group.world
    for round_ in range(-(-size // (batch * lanes))):
        for block in range(round_ * lanes + group.rank * own, round_ * lanes + (group.rank + 1) * own):
            yield block, np.arange(min(block * batch, size), min((block + 1) * batch, size), dtype=np.int64)


def _merged(task: Task, metrics: Sequence[Mapping[str, Metric]], group: Group) -> Mapping[str, Metric]:
    """Metrics of all lanes, added up in their order."""
    if group.world == len(metrics) == 1:
        return metrics[0]
    total = task.metrics()
    for states in group.gather_json([{name: metric.state() for name, metric in lane.items()} for lane in metrics]):
        for state in states:
            for name, metric in total.items():
                metric.merge(state[name])
    return total
