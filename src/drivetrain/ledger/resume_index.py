"""What an attempt must know of those before it, from one pass over the ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.ledger.comparison import comparable, still_promised
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import (
    AttemptRecord,
    CodeFileRecord,
    CodeRecord,
    CommandRecord,
    CommitRecord,
    EvaluationRecord,
    ExitRecord,
    FinalRecord,
    PlanRecord,
    Record,
    RollbackRecord,
    Scores,
    ShowRecord,
    StepRecord,
)


@dataclass
class ResumeIndex:
    """The attempts so far and when the first began (Unix time), the last step of the history that counts, and its
    evaluations' metrics by step."""

    attempts: int = 0
    began: float | None = None
    last_step: int = 0
    evaluations: dict[int, Scores] = field(default_factory=dict)
    finals: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """Names of the sets that were scored since the run was done, by step and by what they are (validation, test)."""
    shown: set[int] = field(default_factory=set)
    """The steps after which the task has shown something."""
    newest: AttemptRecord | None = None
    """The record of the newest attempt."""
    uncommitted: dict[int, StepRecord] = field(default_factory=dict)
    """Records of steps that no commit has yet, of the newest attempt that made each."""
    commands: dict[str, CommandRecord] = field(default_factory=dict)
    """What the run was told while it trained and has done, by id: the record of when it was first done."""
    refused: set[str] = field(default_factory=set)
    """Ids of what it was told and has not done."""
    ended: set[str] = field(default_factory=set)
    """Ids of what was done under other settings than an attempt after it had."""
    pending_command: str = ""
    """The pause or stop that the newest attempt was told, where it was cut off in it."""
    undone: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    """Bad steps, the ones that the run went back to, and the samples that it has left out since."""
    newest_files: dict[str, CodeFileRecord] | None = None
    """The user's code that the newest attempt ran, with what came late; None where it kept no record of code."""
    late_code: dict[str, CodeFileRecord] = field(default_factory=dict)
    """The files of the user's code that came late, by name, as they were found first."""
    late_places: dict[str, str] = field(default_factory=dict)
    """Where each of them lay."""
    tries: dict[int, AttemptRecord] = field(default_factory=dict)
    """All attempts by number."""
    planned: set[str] = field(default_factory=set)
    """Digests of what was planned beside an attempt."""

    def add(self, record: Record) -> None:
        """One record further."""
        match record:
            case StepRecord():
                self.last_step = record.step
                self.uncommitted[record.step] = record
            case CommitRecord():
                self.uncommitted = {step: made for step, made in self.uncommitted.items() if step > record.step}
            case AttemptRecord():
                self._begin(record)
            case RollbackRecord():
                self._back_to(record.to)
                self.undone.append((record.step, record.to, record.samples))
            case EvaluationRecord():
                self.evaluations[record.step] = record.metrics
            case FinalRecord():
                self.finals.setdefault(record.step, {}).setdefault(record.part, []).extend(record.metrics)
            case CommandRecord():
                self._tell(record)
            case ShowRecord():
                self.shown.add(record.step)
            case CodeRecord():
                self._find_late(record)
            case PlanRecord():
                self.planned.add(record.of)
            case ExitRecord():
                self.pending_command = ""
        self.uncommitted = still_promised(self.uncommitted, record)

    def _begin(self, attempt: AttemptRecord) -> None:
        self.attempts += 1
        # For good, also where the settings come back: an attempt in between has trained without it.
        self.ended |= {id for id, told in self.commands.items() if told.settings != attempt.settings}
        self.newest = self.tries[attempt.attempt] = attempt
        self.newest_files = dict(attempt.user_code.known) if attempt.user_code else None
        if self.began is None:
            self.began = attempt.started
        self._back_to(attempt.from_step)

    def _find_late(self, record: CodeRecord) -> None:
        self.newest_files = {**(self.newest_files or {}), **record.files}
        for name, file in record.files.items():
            self.late_code.setdefault(name, file)
            self.late_places.setdefault(name, record.places[name])

    def _tell(self, command: CommandRecord) -> None:
        if command.refused is not None:
            self.refused.add(command.id)
            return
        # The first record of a command counts: the others are of steps that were made again.
        self.commands.setdefault(command.id, command)
        told = {"pause": "pause", "resume": "", "stop": "stop"}
        self.pending_command = told.get(command.verb, self.pending_command)

    def _back_to(self, step: int) -> None:
        """What came after this step is void."""
        self.last_step = step
        self.evaluations = {at: found for at, found in self.evaluations.items() if at <= step}
        self.shown = {at for at in self.shown if at <= step}
        self.finals = {at: found for at, found in self.finals.items() if at <= step}

    def promised(self) -> dict[int, StepRecord]:
        """Of the steps that no commit has, those that the newest attempt must make again to the same bits."""
        assert self.newest is not None
        found = {}
        for step, made in self.uncommitted.items():
            if made.attempt != self.newest.attempt and comparable(self.tries[made.attempt], self.newest):
                found[step] = made
        return found

    def evaluated(self, step: int) -> bool:
        """Whether the evaluation of this step is there."""
        return step in self.evaluations

    def scores(self, metric: str) -> dict[int, float]:
        """SET/METRIC by step."""
        found = {}
        # A copy: a commit's writer asks from its own thread, while training adds to them.
        for step, metrics in list(self.evaluations.items()):
            score = score_of(metrics, metric)
            if score is not None:
                found[step] = score
        return found

    def joins(self, records: Sequence[int], step: int) -> bool:
        """Whether the steps in the ledger, with these records' after them, reach `step` without a gap."""
        reached = self.last_step
        for number in sorted(records):
            if number == reached + 1:
                reached = number
        return reached >= step

    def has(self, owed: Sequence[tuple[str, int]]) -> bool:
        """Whether all evaluations and ways back of these steps, given by kind and step, are there."""
        known = {(EvaluationRecord.kind, step) for step in self.evaluations}
        known |= {(RollbackRecord.kind, step) for step, _, _ in self.undone}
        return all((kind, step) in known for kind, step in owed)


def score_of(metrics: Scores, metric: str) -> float | None:
    """SET/METRIC among an evaluation's metrics; NaN where nothing was gathered of the set, None where it is absent."""
    name, _, which = metric.partition("/")
    if name in metrics and not metrics[name]:
        return math.nan
    value = metrics.get(name, {}).get(which)
    return None if value is None else float(value)


def history_of(run: Path) -> ResumeIndex:
    """What the ledger of a run tells that is not trained here. Raises Failure: 66 where there is none, 74 where its
    chain is broken."""
    history = ResumeIndex()
    for record in read(run / "ledger.jsonl"):
        history.add(record)
    return history
