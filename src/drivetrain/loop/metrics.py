"""Metrics of an evaluation: additive states, so that processes and lanes merge in a fixed order."""

from __future__ import annotations

from typing import Protocol


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
