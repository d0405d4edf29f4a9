"""Scores of training samples, made just before a step learns from them, and what they come to over many steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.ledger.records import TrainingRecord
from drivetrain.loop.evaluation import Evaluator
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.recipe import Training
from drivetrain.loop.state import RunState

Means = Mapping[str, Sequence[float]]
"""By metric: a sum of scores, and the weight that they have in it."""


def decayed(means: Means, scores: Mapping[str, float], decay: float) -> dict[str, tuple[float, float]]:
    """The means one step further: with every new score older ones count `decay` times as much as before.

    mean_n = sum(decay ** (n - i) * score_i) / sum(decay ** (n - i)), so the first one is no less right than later ones.
    A score that is no number changes nothing.
    """
    found = {name: (total, weight) for name, (total, weight) in means.items()}
    for name, score in scores.items():
        if math.isfinite(score):
            total, weight = found.get(name, (0.0, 0.0))
            found[name] = decay * total + score, decay * weight + 1.0
    return found


class TrainingScores:
    """Scores the samples of steps where it is time, by what the networks know before they learn from them."""

    def __init__(
        self,
        settings: Training | None,
        evaluator: Evaluator,
        timetable: Timetable,
        state: RunState,
        ledger: LedgerWriter,
    ) -> None:
        """`settings` are None where nothing is scored."""
        self._settings = settings
        self._evaluator = evaluator
        self._timetable = timetable
        self._state = state
        self._ledger = ledger

    def due(self, batch: LocalBatch) -> bool:
        """Whether the step's samples are scored."""
        settings = self._settings
        return settings is not None and self._timetable.due(settings.every, Progress(batch.step, batch.stop))

    def score(self, batch: LocalBatch) -> None:
        """Score the step's samples, and tell the ledger. Every rank calls it, with its own."""
        assert self._settings is not None, "it is due"
        self._state.engine.heartbeat.enter("evaluation")
        scores = self._evaluator.score_batch(batch)
        seconds = self._ledger.lap("evaluation")
        means = decayed(self._state.training, scores, self._settings.decay)
        self._state.training = means
        told = {name: total / weight for name, (total, weight) in means.items()}
        self._ledger.record(
            TrainingRecord(step=batch.step, position=batch.start, seconds=seconds, metrics=scores, means=told)
        )
