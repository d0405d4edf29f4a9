"""Scores so far, for learning rates that follow them."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.spec.amount import Amount, Scale

ScoresByPlace = Mapping[str, list[tuple[int, float]]]
"""By SET/METRIC: the samples consumed when it was scored, and the score, in order."""


@dataclass
class ScoreHistory:
    """What the validation sets came to after which step. The same on every rank, and after a resume."""

    _steps: list[int] = field(default_factory=list)
    _scores: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, step: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """The scores of this step, by set and metric, in place of earlier ones of it."""
        self.forget_after(step - 1)
        scores: dict[str, float] = {}
        for name, told in metrics.items():
            scores |= {f"{name}/{metric}": float(value) for metric, value in told.items()}
        self._steps.append(step)
        self._scores.append(scores)

    def forget_after(self, step: int) -> None:
        """The run has gone back to this step."""
        kept = bisect.bisect_right(self._steps, step)
        del self._steps[kept:], self._scores[kept:]

    def before(self, position: int, every: Amount, scale: Scale) -> ScoresByPlace:
        """What was scored before the step that ends at this position; only at multiples of `every`, since an evaluation
        at another step is nobody's promise."""
        found: dict[str, list[tuple[int, float]]] = {}
        for step, scores in zip(self._steps, self._scores, strict=True):
            stop = scale.batches.span(step)[1]
            if stop >= position or not every.is_due(step, stop, scale):
                continue
            for name, score in scores.items():
                found.setdefault(name, []).append((stop, score))
        return found
