"""Metrics of an evaluation: additive states, so that processes and lanes merge in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Metric(Protocol):
    """What an evaluation needs of a metric: numbers that add up, and what they come to."""

    def state(self) -> list[float]:
        """The numbers gathered by one lane, always as many; they are added up in the order of the lanes."""
        ...

    def merge(self, state: list[float]) -> None:
        """Add another lane's numbers."""
        ...

    def value(self) -> float:
        """The metric itself; NaN where nothing was gathered."""
        ...


class Mean:
    """A weighted mean: total / count * scale."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._total = 0.0
        self._count = 0.0

    def add(self, total: float, count: float) -> None:
        """Add a sum over `count` things."""
        self._total += total
        self._count += count

    def state(self) -> list[float]:
        """Total and count."""
        return [self._total, self._count]

    def merge(self, state: list[float]) -> None:
        """Add another lane's total and count."""
        self.add(*state)

    def value(self) -> float:
        """The mean, NaN where nothing was added."""
        return self._total / self._count * self._scale if self._count else float("nan")


class LossMeans(dict[str, Any]):
    """The mean of each loss by its name. How a task names its losses is known once they were computed, so a mean is
    made for each one that comes."""

    def know(self, names: Iterable[str]) -> None:
        """Have a mean for each of these losses."""
        for name in names:
            self.setdefault(name, Mean())

    def __or__(self, others: Mapping[str, Metric]) -> LossMeans:  # type: ignore[override]
        """These and others: it still takes what losses come."""
        return LossMeans({**self, **others})


def values(metrics: Mapping[str, Metric], fresh: Mapping[str, Metric]) -> dict[str, float]:
    """What metrics come to; empty where none has gathered anything, such as of samples without labels.

    `fresh` are the same as they are made. A mean that was there for a loss of which nothing was heard is left out.
    """
    found = {name: float(metric.value()) for name, metric in metrics.items()}
    idle = [name for name, value in found.items() if math.isnan(value) and _as_made(name, metrics, fresh)]
    if len(idle) == len(found):
        return {}
    if isinstance(metrics, LossMeans):
        for name in idle:
            del found[name]
    return found


def _as_made(name: str, metrics: Mapping[str, Metric], fresh: Mapping[str, Metric]) -> bool:
    return name in fresh and list(metrics[name].state()) == list(fresh[name].state())
