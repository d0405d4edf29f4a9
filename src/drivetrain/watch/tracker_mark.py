"""What a ledger's records say to a tracker, and how far that has been sent: pure functions of records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from drivetrain.ledger.ledger import chain_of
from drivetrain.ledger.records import (
    AttemptRecord,
    EvaluationRecord,
    ExitRecord,
    FinalRecord,
    Histogram,
    Record,
    StatisticsRecord,
    StepRecord,
    TelemetryRecord,
    TrainingRecord,
)
from drivetrain.ledger.throughput import full_rate
from drivetrain.spec.secrets import without_secret, without_users
from drivetrain.watch.scalars import histograms, scalars

_WORDS = 500  # characters of an attempt's cause

Change: TypeAlias = tuple[dict[str, Any], "TrackerRow | None"]
"""The fields of a mark that change, and what is new to the tracker."""


@dataclass(frozen=True)
class TrackerRow:
    """What a record says to a tracker: values at a step, with the samples and tokens up to it as further axes.

    `histograms` are for trackers that show them; `notes` are words about the run as a whole, of which the newest
    counts.
    """

    kind: str  # attempt, step, evaluation, final, telemetry, statistics or exit
    key: str  # the same for the same thing made again
    step: int
    time: float
    values: Mapping[str, float]
    notes: Mapping[str, str] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    number: int = 0  # counted from the run's first row


@dataclass(frozen=True)
class Mark:
    """How far the ledger has been sent, and the highest step, evaluation, attempt and exit: nothing goes twice.

    `run` is the ledger's first chain hash; `chain` the hash of the record that ends at `offset`. `full_rate` is that of
    the attempt that `offset` lies in. `finals` are the keys of what was scored at the run's end.
    """

    run: str
    target: str
    offset: int = 0
    chain: str = ""
    step: int = 0
    samples: int = 0
    tokens: int = 0
    evaluated: int = -1
    finals: Sequence[str] = ()
    telemetry: int = 0
    statistics: int = 0
    training: int = 0
    attempt: int = 0
    exited: int = 0
    rows: int = 0
    full_rate: float = 0.0

    @classmethod
    def kept(cls, path: Path) -> Mark | None:
        """The mark in a file, None where there is none that can be read."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def after(self, line: bytes, record: Record) -> tuple[Mark, TrackerRow | None]:
        """The mark one record further, and what of it is new to the tracker."""
        change, row = self._change(record)
        mark = replace(self, offset=self.offset + len(line), chain=chain_of(line), **change)
        if row is None:
            return mark, None
        return replace(mark, rows=self.rows + 1), replace(row, number=self.rows + 1)

    def _change(self, record: Record) -> Change:
        match record:
            case StepRecord():
                return self._step(record)
            case AttemptRecord():
                return self._attempt(record)
            case EvaluationRecord():
                return self._evaluation(record)
            case FinalRecord():
                return self._final(record)
            case TelemetryRecord():
                return self._telemetry(record)
            case StatisticsRecord():
                return self._statistics(record)
            case TrainingRecord():
                return self._training(record)
            case ExitRecord():
                return self._exit(record)
        return {}, None

    def _attempt(self, record: AttemptRecord) -> Change:
        number, begin = record.attempt, record.from_step
        change = {"full_rate": full_rate(record)}
        # The rate is taken over even so: it is needed for the steps that follow, whoever sent the attempt.
        if number <= self.attempt:
            return change, None
        values = {"event/attempt": number, "event/from_step": begin, "event/processes": record.world}
        notes = {"attempts": str(number), "exit": "not yet"}
        return {**change, "attempt": number}, TrackerRow(
            "attempt", f"attempt-{number}", begin, record.time, values, notes
        )

    def _step(self, record: StepRecord) -> Change:
        number = record.step
        if number <= self.step:  # made again after a crash: the same step is there already
            return {}, None
        tokens = self.tokens + record.counts.get("tokens", 0)
        values = {**dict(scalars(record, self.full_rate)), "samples": record.stop, "tokens": tokens}
        change = {"step": number, "samples": record.stop, "tokens": tokens}
        return change, TrackerRow("step", f"step-{number}", number, record.time, values)

    def _evaluation(self, record: EvaluationRecord) -> Change:
        number = record.step
        if number <= self.evaluated:
            return {}, None
        values = dict(scalars(record))
        # The samples so far are those of the newest step: they are not told for an evaluation of an earlier one.
        if number == self.step:
            values |= {"samples": self.samples, "tokens": self.tokens}
        return {"evaluated": number}, TrackerRow("evaluation", f"evaluation-{number}", number, record.time, values)

    def _final(self, record: FinalRecord) -> Change:
        number = record.step
        key = f"{record.part}-{number}-{','.join(record.metrics)}"
        # By name and not by step: sets that were added later are scored at a step that has finals already.
        if key in self.finals:
            return {}, None
        row = TrackerRow("final", key, number, record.time, dict(scalars(record)))
        return {"finals": [*self.finals, key]}, row

    def _telemetry(self, record: TelemetryRecord) -> Change:
        number = record.step
        if number <= self.telemetry:
            return {}, None
        row = TrackerRow("telemetry", f"telemetry-{number}", number, record.time, dict(scalars(record)))
        return {"telemetry": number}, row

    def _statistics(self, record: StatisticsRecord) -> Change:
        number = record.step
        if number <= self.statistics:
            return {}, None
        row = TrackerRow("statistics", f"statistics-{number}", number, record.time, dict(scalars(record)))
        return {"statistics": number}, replace(row, histograms=dict(histograms(record)))

    def _training(self, record: TrainingRecord) -> Change:
        number = record.step
        if number <= self.training:
            return {}, None
        row = TrackerRow("training", f"training-{number}", number, record.time, dict(scalars(record)))
        return {"training": number}, row

    def _exit(self, record: ExitRecord) -> Change:
        if self.attempt <= self.exited:
            return {}, None
        notes = {"exit": without_secrets(f"{record.code} {record.cause}")[:_WORDS]}
        values = {"event/exit": record.code}
        row = TrackerRow("exit", f"exit-{self.attempt}", record.step, record.time, values, notes)
        return {"exited": self.attempt}, row


def without_secrets(value: Any) -> Any:
    """Plain data without the user and password of any URL in it, and without other credentials of one."""
    if isinstance(value, str):
        return without_users(without_secret(value))
    if isinstance(value, Mapping):
        return {key: without_secrets(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(part) for part in value]
    return value
