"""The loop: one step after another, and what is due between them. `docs/the-loop.md` draws it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from drivetrain.ledger.records import CommandRecord, PauseRecord
from drivetrain.loop.commands import Commands
from drivetrain.loop.commits import Commits
from drivetrain.loop.due import DueWork
from drivetrain.loop.ends import EndAgreed, StopAgreed, raise_first, raise_leaders
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.observe import Observer
from drivetrain.loop.reader import Reader
from drivetrain.loop.records import StepRecords
from drivetrain.loop.replicas import Replicas
from drivetrain.loop.rollback import BadStep, Rewind
from drivetrain.loop.scoring import Scoring
from drivetrain.loop.state import RunState
from drivetrain.loop.step_runner import StepRunner
from drivetrain.loop.step_sync import StepSync, SyncResult
from drivetrain.loop.stopping import PlannedStops
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit

_PAUSE = 0.1  # seconds between two looks for commands while the run is paused


@dataclass(frozen=True)
class LoopEnd:
    """How a loop has ended: DONE, STOPPED or DIVERGED, and why; empty for the budget, a signal, or another rank's
    request."""

    exit: Exit
    why: str = ""


@dataclass(frozen=True)
class Loop:
    """Trains from where `state` is to the end of the budget, or until all ranks hear a stop request.

    Each part has its own state, the loop has none. A boundary is the moment between two steps: there all ranks stand
    at the same step, and whatever they decide there, they decide alike.
    """

    state: RunState
    reader: Reader
    runner: StepRunner
    records: StepRecords
    commits: Commits
    scoring: Scoring
    commands: Commands
    due: DueWork
    rewind: Rewind
    replicas: Replicas
    observer: Observer
    ledger: LedgerWriter
    sync: StepSync
    group: Group
    stops: PlannedStops

    @property
    def step(self) -> int:
        """The step after which the run stands."""
        return self.state.progress.step

    def run(self) -> LoopEnd:
        """Train until the budget, the patience or a stop ends it; when it returns, everything is committed.

        Raises Failure: 78 where a commit could not hold the state, 82 where a loss or a gradient is not finite, 83
        where ranks or repeated steps differ, 74 or 85 where commits fail, and whatever data and task raise.
        """
        with closing(self.reader):  # last: what reads ahead may take its time to end, and a commit does not wait for it
            try:
                self.commits.prepare()
                self._apply(self.commands.replay(self.step))
                heard = self.reader.start(self.step + 1)  # first: where streams end here, more is due
                self.due.do()  # what the attempt before still owed at this step, such as an evaluation that was cut off
                self.scoring.check_patience()
                self.rewind.keep()
                self._end_if_agreed(heard)
                while self.reader.upcoming is not None:
                    heard = self._train()
                    if self.records.bad:
                        self._undo(self.records.bad)
                    else:
                        self._boundary(heard)
            except EndAgreed as end:
                return self._finish(end.exit, end.why)
            self.reader.close()  # nothing is left to read: its processes make room for the last evaluation
            return self._finish(Exit.DONE, "the data have ended" if self.reader.exhausted else "")

    def _train(self) -> SyncResult:
        """One step, in the order that users are promised (docs/the-loop.md); what all ranks have said in it."""
        ledger, heartbeat = self.ledger, self.state.engine.heartbeat
        before = ledger.lap("step")  # the last record was written in this step's time
        heartbeat.step = self.step + 1
        heartbeat.enter("data")
        self.observer.before(heartbeat.step)
        counts = self.reader.counts
        batch = self.reader.next()  # 1 fetch, one step ahead
        wait = ledger.lap("wait")
        self.reader.send(batch)  # 6 the pulse leaves, off the training stream
        self.replicas.begin_step()
        self.runner.run(batch, counts)  # 2, 3, 4 seeds, forward, backward, reduction, vote, optimizer, schedules
        heartbeat.enter("pulse")
        heard = self.reader.receive()
        self.records.add(self.runner.close_step(), heard.digest, wait, before)  # 5 the ledger
        self.observer.after(self.state.progress)
        return heard

    def _boundary(self, heard: SyncResult) -> None:
        """Everything between two steps. Raises EndAgreed where the run ends here, or a rank's Failure."""
        self.commits.poll(self.group, heard.parts)
        heard = self._obey(heard)
        self.due.do()  # 7 commit, 8 evaluation
        self.scoring.check_patience()  # 9 exits
        self._end_if_agreed(heard)
        self._end_if_planned()
        self.rewind.keep()

    def _obey(self, heard: SyncResult) -> SyncResult:
        """Do what commands want after this step, and wait here for others while the run is paused."""
        self._apply(self.commands.replay(self.step))
        if heard.commands:
            self._apply(self.commands.fresh(self.step))
        return self._pause(heard) if self.commands.paused else heard

    def _apply(self, commands: Iterable[CommandRecord]) -> None:
        """Do commands in turn, each with what it makes due."""
        for command in commands:
            self.commands.apply(command, self.step)
            self.state.engine.heartbeat.enter("pause")  # there may be many: the watchdog sees that the process gets on
            self.due.do()

    def _pause(self, heard: SyncResult) -> SyncResult:
        """Wait for the command that ends the pause, or for a stop; what was heard last."""
        self.records.drain()
        self.ledger.request()  # it may be a long pause
        self.ledger.lap("step")
        seconds = 0.0
        try:
            while self.commands.paused and not heard.end:
                self.state.engine.heartbeat.enter("pause")
                time.sleep(_PAUSE)
                self.sync.send()
                heard = self.sync.receive()
                seconds += self.ledger.lap("pause")
                self.commits.poll(self.group, heard.parts)
                if heard.commands:
                    self._apply(self.commands.fresh(self.step))
        except StopAgreed:  # in an evaluation that a command asked for
            self.ledger.record(PauseRecord(step=self.step, seconds=seconds))
            raise
        self.ledger.record(PauseRecord(step=self.step, seconds=seconds))
        return heard

    def _undo(self, bad: BadStep) -> None:
        """Go back before a bad step, and read on from there without its samples."""
        step = self.rewind.undo(bad)
        self.scoring.forget_after(step)
        self.due.showing.forget_after(step)
        self.replicas.forget()
        self.observer.back(step)
        self.reader.leave_out(self.state.guard.quarantine)
        self.reader.start(step + 1)  # a stop that is heard here is asked for again in the next step's pulse
        self.records.bad = None  # from here on the leader has told of it, so that the state may be handed over

    def _end_if_agreed(self, heard: SyncResult) -> None:
        """Act on what ranks ask for, unless the run is at its end anyway. Raises StopAgreed, or a rank's failure."""
        if not heard.end or self.reader.upcoming is None:
            return
        if heard.end == Exit.STOPPED:
            raise StopAgreed
        raise_first(self.group, self.sync.failure, heard.end)

    def _end_if_planned(self) -> None:
        """Raises StopAgreed where the recipe or a command wants the run to stop after this step."""
        why = self.stops.why(self.step)
        if not why and self.commands.stop_requested:
            why = "`drivetrain control` asked for a stop"
        if why and self.reader.upcoming is not None:
            raise StopAgreed(why)

    def _finish(self, exit: Exit, why: str = "") -> LoopEnd:
        """Commit and wait for it; score what is scored once where the run is done. Raises the leader's Failure."""
        self.due.commit()  # before the last scores, which may take long
        if exit is Exit.DONE:
            try:
                self.scoring.score_finals(self.state.progress)
            except StopAgreed:
                exit, why = Exit.STOPPED, ""
        self.commits.settle(self.group)
        raise_leaders(self.group, self.commits.close())  # the leader alone writes, and what fails there ends all
        return LoopEnd(exit, why)
