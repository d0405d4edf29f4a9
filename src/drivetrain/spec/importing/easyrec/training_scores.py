"""Metrics of training samples, which a recipe has once for all labels."""

from __future__ import annotations

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node

_PATH = ("evaluate", "training")
_FIELDS = ("decay_step", "decay_rate")


class TrainingScores:
    """Takes how often training samples are scored, and how fast scores are forgotten: as the first metric says it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._first: tuple[int, float] | None = None

    def take(self, metric: Node) -> None:
        """One of `train_metrics`, which has a counterpart."""
        reader = self._reader
        asked = (metric.value("decay_step"), metric.value("decay_rate"))
        if not asked[0]:
            reader.mistake(metric, "decay_step", "is 1 or more")
        elif not 0 <= asked[1] < 1:
            reader.mistake(metric, "decay_rate", "is from 0 to below 1: what a score counts beside the next one")
        elif self._first is None:
            self._first = asked
            note = "the samples of such a step, before it learns from them; there those of all steps between"
            reader.take(metric, "decay_step", (*_PATH, "every", "steps"), reader.facts.steps(asked[0]), note)
            reader.take(metric, "decay_rate", (*_PATH, "decay"), asked[1])
        elif asked != self._first:
            why = f"all training scores have one interval and one decay, here {self._first[0]} and {self._first[1]:g}"
            given = [name for name in _FIELDS if metric.has(name)] or [metric.chosen("metric") or ""]
            reader.lose(metric, given[0], why)
        reader.used(metric, *_FIELDS)
