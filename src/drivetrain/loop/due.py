"""What is due at a boundary: ranks are compared, a commit is begun, sets are scored, samples are shown."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.loop.commands import Commands
from drivetrain.loop.commits import Commits
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.reader import Reader
from drivetrain.loop.records import StepRecords
from drivetrain.loop.replicas import Replicas
from drivetrain.loop.rollback import Rewind
from drivetrain.loop.scoring import Scoring
from drivetrain.loop.showing import Showing
from drivetrain.loop.state import RunState
from drivetrain.loop.step_sync import StepSync
from drivetrain.loop.streams import Streams
from drivetrain.runtime.group import Group


@dataclass(frozen=True)
class DueWork:
    """Does what the timetable and commands want after a step. It may be asked again at the same boundary."""

    state: RunState
    records: StepRecords
    commits: Commits
    scoring: Scoring
    showing: Showing
    commands: Commands
    rewind: Rewind
    replicas: Replicas
    reader: Reader
    ledger: LedgerWriter
    sync: StepSync
    group: Group
    blocking: bool
    """Whether training waits for each commit."""

    def do(self) -> None:
        """Compare, commit, evaluate and show, where it is time or a command wants it. Raises Failure(83) where ranks
        differ, StopAgreed in an evaluation."""
        if self.state.streams:
            self._hear_of_ends(self.state.streams)
        now, timetable, requested = self.state.progress, self.commands.tuning.timetable, self.commands.take_requests()
        if timetable.due(self.state.guard.settings.replicas, now):
            self.replicas.compare(now.step)
        evaluation = "evaluate" in requested or timetable.evaluation_due(now)
        commit = "save" in requested or timetable.commit_due(now)
        # The commit comes first: an evaluation takes long, and a stop or a crash in it then costs no step.
        if commit or (evaluation and timetable.commit_evaluated):
            self.commit()
        if evaluation:
            self.records.drain()  # the steps' records come before the evaluation's
            self.scoring.evaluate(self.state.progress)
        if self.showing.due(now, timetable, evaluation=evaluation):
            self.records.drain()
            self.showing.show(now.step)

    def _hear_of_ends(self, streams: Streams) -> None:
        """Tell of streams that end in the next step, before it is made; where all have ended, so has the budget."""
        step = self.state.progress.step
        for record in streams.ended(step):
            self.ledger.record(record)
        if self.reader.exhausted:
            self.commands.tuning.end_at(step)

    def commit(self) -> None:
        """Begin this boundary's commit, unless that is done, or what is here is suspect and the run about to end."""
        step = self.state.progress.step
        # Only the leader has heard of a commit that failed since; all ranks must take part in the next one, or none.
        folder = self.group.broadcast_json(self.commits.next_folder(step))
        if folder is None:
            return
        self.commits.settle(self.group)
        self.records.drain()
        if self.state.guard.settings.replicas:
            self.replicas.compare(step)  # no bit that has flipped on one rank is committed
        # The commit has rank 0's buffers; every rank goes on with these, as a run that is resumed from it does.
        self.state.engine.buffers.share()
        if self.state.streams:
            self.state.streams.mark(self.reader.coverage(self.state.progress.position))
        # Looked at last: it may be this rank's alone, and everything before takes all ranks.
        if self.sync.failure is None:
            self.commits.begin(folder)
            self.rewind.clear()
        # All ranks, also one that has begun none: nobody waits elsewhere for the one that writes.
        if self.blocking:
            self.commits.hold(self.group)
