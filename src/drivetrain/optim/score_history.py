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
    _found: dict[tuple[Amount, Scale], tuple[int, ScoresByPlace]] = field(default_factory=dict)
    """What `before` has gathered, of how many evaluations: every step asks, and few come after an evaluation."""

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
        self._found.clear()

    def before(self, position: int, every: Amount, scale: Scale) -> ScoresByPlace:
        """What was scored before the step that ends at this position; only at multiples of `every`, since an evaluation
        at another step is nobody's promise. The same object as long as it is the same: it is not to be changed."""
        count = bisect.bisect_left(self._steps, position, key=lambda step: scale.batches.span(step)[1])
        known = self._found.get((every, scale))
        if known is not None and known[0] == count:
            return known[1]
        found: dict[str, list[tuple[int, float]]] = {}
        for step, scores in zip(self._steps[:count], self._scores[:count], strict=True):
            stop = scale.batches.span(step)[1]
            if every.is_due(step, stop, scale):
                for name, score in scores.items():
                    found.setdefault(name, []).append((stop, score))
        self._found[every, scale] = count, found
        return found
