"""Learning-rate schedules: pure functions of the samples consumed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from drivetrain.optim.recipe import Constant, Cosine, Linear

Factor = Callable[[int], float]
"""From samples consumed, this step's included, to a factor on the peak learning rate."""


@dataclass(frozen=True)
class Span:
    """Where a schedule's landmarks lie, in samples."""

    warmup: int
    total: int

    def rise(self, position: int) -> float:
        """Warm-up: position / warmup, at most 1."""
        return min(1.0, position / self.warmup) if self.warmup else 1.0

    def progress(self, position: int) -> float:
        """How much of the way from the warm-up's end to the budget's end is behind: 0 to 1."""
        if position >= self.total:
            return 1.0
        return max(0.0, (position - self.warmup) / (self.total - self.warmup))


def constant(settings: Constant, span: Span) -> Factor:
    """1 after the warm-up."""
    return span.rise


def linear(settings: Linear, span: Span) -> Factor:
    """1 - (1 - floor) * progress, after the warm-up."""
    fall = 1.0 - settings.floor
    return lambda position: span.rise(position) * (1.0 - fall * span.progress(position))


def cosine(settings: Cosine, span: Span) -> Factor:
    """floor + (1 - floor) * (1 + cos(pi * progress)) / 2, after the warm-up (arXiv 1608.03983, equation 5)."""
    half = (1.0 - settings.floor) / 2.0
    return lambda position: (
        span.rise(position) * (settings.floor + half * (1.0 + math.cos(math.pi * span.progress(position))))
    )
