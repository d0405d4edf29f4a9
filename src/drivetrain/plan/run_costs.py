"""What a run has cost by its ledger, as a simulation wants it. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import (
    AttemptRecord,
    CommitRecord,
    EvaluationRecord,
    PauseRecord,
    Record,
    StepRecord,
    TelemetryRecord,
    TrainingRecord,
)
from drivetrain.spec.exits import Exit, Failure

_BESIDE = (EvaluationRecord, TrainingRecord, PauseRecord)


@dataclass(frozen=True)
class RunCosts:
    """Seconds by the names of `Costs`, only those that the ledger tells; each has its origin, of the same name. Beside
    these: the processes, the step's part that is spent in the pulse (None: alone, or not told), and the share of
    restarts that went on from what survivors had left (None: there was none)."""

    seconds: Mapping[str, Any]
    origins: Mapping[str, str]
    world: int
    pulse: float | None = None
    handed_over: float | None = None


def costs_of_run(run: Path) -> RunCosts:
    """Those of a run directory's ledger. Raises Failure(66) where it has made fewer than two steps, and what reading
    raises."""
    found = costs_of(read(run / "ledger.jsonl"), str(run))
    if found is None:
        cause = f"--like {run}: it has made fewer than two steps in one start"
        raise Failure(Exit.INPUT_MISSING, cause, "name a run that has trained for a while")
    return found


def costs_of(records: Iterable[Record], name: str) -> RunCosts | None:
    """Those of a ledger's records; None where no start has made two steps. Steps that a later attempt made void were
    made all the same, so they count."""
    told = _Told()
    for record in records:
        told.add(record)
    if not told.steps:
        return None
    steps, commits = told.steps, told.commits
    seconds: dict[str, Any] = {"step": statistics.fmean(steps), "beside": told.beside / told.count}
    counted = f"{len(steps):,} steps of {name}"
    origins = {"step": counted, "beside": f"data, evaluations and pauses beside {counted}"}
    if len(steps) > 1:
        seconds["spread"], origins["spread"] = statistics.stdev(steps), counted
    seconds["first"] = max(0.0, statistics.fmean(told.firsts) - seconds["step"])
    origins["first"] = f"the first steps of {len(told.firsts)} starts of {name}"
    if commits:
        # Medians: the last commit of a run is waited for, and the first one pays for new memory.
        seconds["commit"] = statistics.median([one.seconds - one.waited for one in commits])
        seconds["writing"] = statistics.median([one.writing for one in commits])
        origins |= dict.fromkeys(("commit", "writing"), f"the median of {len(commits)} commits of {name}")
    if told.cold:
        seconds["cold"] = statistics.median(told.cold)
        origins["cold"] = f"{len(told.cold)} starts of {name}, from the command to the first step"
    if told.warm:
        seconds["restart"] = tuple(told.warm)
        origins["restart"] = f"{len(told.warm)} restarts of {name}, from when its supervisor noticed to the first step"
    pulse = told.pulse / told.pulsed if told.pulsed else None
    return RunCosts(seconds, origins, told.attempts[-1].world, pulse, told.handed_over)


class _Told:
    """What the records say, one after the other."""

    def __init__(self) -> None:
        self.attempts: list[AttemptRecord] = []
        self.steps: list[float] = []
        self.firsts: list[float] = []
        self.commits: list[CommitRecord] = []
        self.beside = 0.0
        self.count = 0
        self.pulse, self.pulsed = 0.0, 0
        self._first = True

    def add(self, record: Record) -> None:
        match record:
            case AttemptRecord():
                self.attempts.append(record)
                self._first = True
            case StepRecord():
                (self.firsts if self._first else self.steps).append(record.seconds)
                self._first = False
                self.beside += record.wait
                self.count += 1
            case CommitRecord():
                self.commits.append(record)
            case TelemetryRecord() if record.world > 1:
                self.pulse += record.phases.get("pulse", 0.0)
                self.pulsed += record.steps
            case _ if isinstance(record, _BESIDE):
                self.beside += record.seconds

    @property
    def cold(self) -> list[float]:
        """Seconds of the starts that no supervisor made after another."""
        return [record.time - record.started for record in self.attempts if record.after is None]

    @property
    def warm(self) -> list[float]:
        """Seconds of restarts that had no pause before them: something new had been reached."""
        found = []
        for before, after in pairwise(self.attempts):
            noticed = _noticed(after)
            if noticed is not None and after.from_step > before.from_step:
                found.append(after.time - noticed)
        return found

    @property
    def handed_over(self) -> float | None:
        restarts = [record.survivors for record in self.attempts if record.after is not None]
        return sum(restarts) / len(restarts) if restarts else None


def _noticed(record: AttemptRecord) -> float | None:
    return record.after.get("noticed") if record.after else None
