"""Evaluations of a run: on the way, with the patience that may end it early, and once it is done."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from drivetrain.ledger.records import EvaluationRecord, FinalRecord, NoteRecord
from drivetrain.ledger.resume_index import score_of
from drivetrain.loop.ends import EarlyStop, NeverScored
from drivetrain.loop.evaluation import Evaluator, Scores, ValidationSet
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Patience
from drivetrain.loop.stopping import exhausted, why_exhausted
from drivetrain.optim.score_history import ScoreHistory


@dataclass(frozen=True)
class ScoredSets:
    """What a run scores: `validation` at every evaluation, `finals` once it is done, by what they are (validation,
    test). Nothing is chosen or stopped by finals."""

    validation: Sequence[ValidationSet]
    finals: Mapping[str, Sequence[ValidationSet]]


@dataclass(frozen=True)
class ScoredBefore:
    """What the ledger has of scores at an attempt's start.

    `evaluated`: whether the evaluation of the attempt's first step is there. `scores` are those by which the run may
    stop early, in order. `finals` are names of final sets that were scored at that step, by what they are.
    """

    evaluated: bool = False
    scores: Sequence[float] = ()
    finals: Mapping[str, Collection[str]] = field(default_factory=dict)


class Scoring:
    """Scores sets when told to, keeps the scores in the ledger, and says when patience ends."""

    def __init__(
        self,
        evaluator: Evaluator,
        ledger: LedgerWriter,
        sets: ScoredSets,
        patience: Patience | None,
        deciding: Mapping[str, str],
        history: ScoreHistory,
    ) -> None:
        """`deciding` are the metrics (SET/METRIC) by which something is decided, by their places in the recipe.
        `history` has the scores so far, for whoever follows them."""
        self.sets = sets
        self._evaluator = evaluator
        self._ledger = ledger
        self._patience = patience
        self._deciding = deciding
        self._history = history
        self._evaluated = -1  # the step of the newest evaluation that counts
        self._scores: list[tuple[int, float]] = []  # after which step, and what: by these it may stop early
        self._before = ScoredBefore()
        self._first = -1  # the step that `_before` is of

    def resume(self, before: ScoredBefore, step: int) -> None:
        """Go on from what the ledger has at this step."""
        self._before, self._first = before, step
        self._scores = [(step, score) for score in before.scores]
        self._evaluated = step if before.evaluated else -1

    def evaluate(self, progress: Progress) -> None:
        """Score the validation sets, unless that is done. Raises StopAgreed where a stop was heard on the way."""
        step = progress.step
        # A resumed run comes to the same boundary again, and an evaluation with a record counts once.
        if self._evaluated == step or not self.sets.validation:
            return
        self._ledger.flush()  # it may take long, and nobody else would have these records
        scores, seconds = self._score(self.sets.validation, step)
        self._ledger.record(
            EvaluationRecord(
                step=step,
                position=progress.position,
                seconds=seconds,
                metrics=scores.metrics,
                counts=scores.counts,
            )
        )
        self._tell_unknown(scores, step)
        self._evaluated = step
        self._history.add(step, scores.metrics)
        if self._patience:
            score = score_of(scores.metrics, self._patience.metric)
            # A set that gathered nothing says neither better nor worse.
            if score is not None:
                self._scores.append((step, score))

    def check_patience(self) -> None:
        """Raises EarlyStop where the scores have not become better for too long, NeverScored where none of them was a
        number: what is wrong then is the metric or the run, which is not done."""
        patience, scores = self._patience, [score for _, score in self._scores]
        if patience is None or not exhausted(scores, patience):
            return
        if all(map(math.isnan, scores)):
            raise NeverScored(f"stop.patience: {patience.metric} was not a number in {len(scores)} evaluations")
        raise EarlyStop(why_exhausted(scores, patience))

    def score_finals(self, progress: Progress) -> None:
        """Score what is scored once, and is not in the ledger yet.

        Called after this step's commit was begun, so that nothing is lost if it takes too long. Raises StopAgreed
        where a stop was heard on the way: the resumed run does the rest.
        """
        for part, sets in self._left(progress.step):
            scores, seconds = self._score(sets, progress.step)
            self._ledger.record(
                FinalRecord(
                    part=part,
                    step=progress.step,
                    position=progress.position,
                    seconds=seconds,
                    metrics=scores.metrics,
                    counts=scores.counts,
                )
            )

    def forget_after(self, step: int) -> None:
        """The run has gone back to this step: later evaluations are void."""
        # Else a score that is void could end the run early, or keep it from ending.
        self._scores = [(at, score) for at, score in self._scores if at <= step]
        self._history.forget_after(step)
        if self._evaluated > step:
            self._evaluated = -1

    def _tell_unknown(self, scores: Scores, step: int) -> None:
        """A note where a score that decides something is no number."""
        places: dict[str, list[str]] = {}
        for place, metric in self._deciding.items():
            score = score_of(scores.metrics, metric)
            if score is None or math.isnan(score):
                places.setdefault(metric, []).append(place)
        told = [f"{metric} is not a number, for {' and '.join(found)} never better" for metric, found in places.items()]
        if told:
            self._ledger.record(NoteRecord(text=f"after step {step} {'; '.join(told)}"))

    def _left(self, step: int) -> Iterator[tuple[str, list[ValidationSet]]]:
        for part, sets in self.sets.finals.items():
            # The ledger tells of the attempt's first step; final scores of any later one are still to be made.
            done: Collection[str] = ()
            if step == self._first:
                done = self._before.finals.get(part, ())
            if left := [each for each in sets if each.name not in done]:
                yield part, left

    def _score(self, sets: Sequence[ValidationSet], step: int) -> tuple[Scores, float]:
        """The scores, and the seconds that they took; these count as evaluation also where a stop was heard."""
        try:
            scores = self._evaluator.score(sets, step)
        finally:
            seconds = self._ledger.lap("evaluation")
        return scores, seconds
