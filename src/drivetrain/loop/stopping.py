"""When a run ends before its budget: pure functions of what has happened, with the clock given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drivetrain.loop.recipe import Patience, Stop
from drivetrain.spec.settings import seconds_of


def exhausted(scores: Sequence[float], patience: Patience) -> bool:
    """Whether as many evaluations as the patience allows have passed without a better score.

    Better is by more than `change`; a score that is no number is never better.
    """
    best, since = math.nan, 0
    for score in scores:
        gain = best - score if patience.mode == "min" else score - best
        if gain > patience.change or (math.isnan(best) and not math.isnan(score)):
            best, since = score, 0
        else:
            since += 1
    return since >= patience.evaluations


def why_exhausted(scores: Sequence[float], patience: Patience) -> str:
    """Why the run ends where the patience is exhausted, with the scores that were no number."""
    count = patience.evaluations
    why = f"{patience.metric} has not become better in {count} evaluations"
    if unknown := sum(map(math.isnan, scores[-count:])):
        why += f"; in {unknown} of them it was not a number"
    return why


@dataclass(frozen=True)
class PlannedStops:
    """Where a run stops, to be started again: after the steps `at`, and after `most` steps from the step `begin` on."""

    at: Sequence[int] = ()
    begin: int = 0
    most: int | None = None

    def why(self, step: int) -> str:
        """Why the run stops after this step; empty where it goes on."""
        if step in self.at:
            return f"step {step} is one of stop.at"
        if step - self.begin == self.most:
            return f"{self.most} steps were asked for"
        return ""


def deadline(stop: Stop, first: float, this: float, environment: Mapping[str, str]) -> float | None:
    """Unix time at which a run should end, None for none: the recipe's deadline, counted from the first attempt's start
    or this one's, and `margin` seconds before Slurm ends the job, whichever is earlier."""
    ends = []
    if stop.deadline is not None:
        begin = first if stop.counted_from == "first" else this
        ends.append(begin + seconds_of(stop.deadline))
    slurm = environment.get("SLURM_JOB_END_TIME", "")
    if slurm.isdigit():
        ends.append(int(slurm) - stop.margin)
    return min(ends, default=None)
