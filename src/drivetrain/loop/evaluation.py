"""Validation: each sample scored once, on all processes, with a stop heard between batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """A source to score, how many samples a process takes at a time, and how many it scores: all where None."""

    name: str
    source: Source
    batch: int
    most: int | None = None

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

    Where there is a gallery (on one rank only), the task may put into it what it makes of the first set's first block.

    Processes take blocks of a set in turn; the last blocks may be short or missing, and nothing is scored twice.
    The metrics' states are merged in rank order, so every rank has the same result.
    """
    scores = Scores({}, {})
    with engine.evaluating() as networks:
        for number, validation in enumerate(sets):
            metrics = task.metrics()
            for index, ids in enumerate(_blocks(validation, group)):
                engine.heart.enter("evaluation")
                exchange.send()
                if len(ids):
                    engine.seed(step, _EVALUATION + number, index, group.rank)
                    batch = to_device(task.collate(validation.source.read(ids, ids)), engine.device)
                    task.evaluate(networks, batch, metrics)
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
    ids = np.arange(min(validation.batch, validation.size), dtype=np.int64)
    batch = to_device(task.collate(validation.source.read(ids, ids)), engine.device)
    task.show(engine.networks, batch, gallery)


def _blocks(validation: ValidationSet, group: Group) -> Iterator[np.ndarray]:
    """This rank's sample ids, block by block; as many blocks on every rank, some of them short or empty."""
    size, batch = validation.size, validation.batch
    for start in range(group.rank * batch, size + group.rank * batch, batch * group.world):
        yield np.arange(start, max(start, min(start + batch, size)), dtype=np.int64)


def _merged(task: Task, metrics: Mapping[str, Metric], group: Group) -> Mapping[str, Metric]:
    """Metrics over all ranks, added up in rank order."""
    if group.world == 1:
        return metrics
    total = task.metrics()
    for states in group.gather_json({name: metric.state() for name, metric in metrics.items()}):
        for name, metric in total.items():
            metric.merge(states[name])
    return total
