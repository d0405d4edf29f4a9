"""A run's commits, as the loop makes them: begun at a boundary, written beside training, told once they are there.

Either one rank writes all, or each its part. Then a pulse says how many ranks have ended theirs; once all have, they
tell each other at the next boundary what each has written, and rank 0 makes the commit of it, beside training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drivetrain.checkpoint.commits import MAX_FAILURES, Commit, CommitFailure, Committer
from drivetrain.checkpoint.manifest import name_of
from drivetrain.checkpoint.mirror import Mirror
from drivetrain.checkpoint.tensors import require_writable
from drivetrain.ledger.queue import TURN
from drivetrain.loop.commit_records import CommitRecords, LateCode, PendingCommit
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.state import CommitMetadata, RunState
from drivetrain.loop.step_sync import StepSync
from drivetrain.loop.telemetry import held
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Failure, Outcome

MIRROR_PATIENCE = 120.0
"""Seconds that a run which is at its end waits for its last commit to be copied."""


@dataclass(frozen=True)
class CommitStorage:
    """What writes commits, on the rank that does, and what copies them elsewhere, if anything does."""

    committer: Committer
    mirror: Mirror | None
    late_code: LateCode = lambda _: ()


class Commits:
    """Begins commits, one at a time, and tells the ledger how each has ended.

    Every rank has one, so that all know alike which step is covered; without `storage` a rank writes nothing.
    """

    def __init__(
        self,
        state: RunState,
        ledger: LedgerWriter,
        sync: StepSync,
        metadata: CommitMetadata,
        coverage: Callable[[int], dict[str, int]],
        storage: CommitStorage | None = None,
    ) -> None:
        """`metadata` are the first commit's but for position and ledger; `coverage` says how many samples of each
        source lie before a position."""
        self._state = state
        self._ledger = ledger
        self._sync = sync
        self._metadata = metadata
        self._records = CommitRecords(ledger, coverage)
        self._storage = storage
        self._pending: PendingCommit | None = None
        self._tried = False
        self._covered = -1  # the step that is committed, or whose commit is under way

    def resume(self, step: int) -> None:
        """Go on from the commit of this step."""
        self._covered = step

    def prepare(self) -> None:
        """Before the first step, and after it, when optimizers have begun their state: have the memory ready.

        Raises Failure(78) where a commit could not hold a tensor of this state.
        """
        require_writable(self._state.tensors)
        if self._storage:
            self._storage.committer.prepare(self._state.tree().tensors)

    def next_folder(self, step: int) -> str | None:
        """Where the commit of this step is to be made; None where it needs none, since there is one, or it is under
        way. Rank 0 tells it to all: it alone knows of commits that have failed."""
        if self._covered == step:
            return None
        return self._storage.committer.next_folder(step) if self._storage else ""

    def begin(self, folder: str) -> None:
        """Begin the commit of this boundary, in rank 0's `next_folder`. The one before has been waited for, by
        `settle`."""
        state, ledger = self._state, self._ledger
        step = state.progress.step
        # One at a time, and told first: the new manifest names the one before, and the ledger's tail covers its record.
        self._record_commit_result(self._storage and self._storage.committer.finished())
        waited, sizes = ledger.lap("commit"), {}
        if self._storage:
            tree = state.tree()
            sizes = held(state.engine, tree.tensors)
            self._storage.committer.begin(step, tree, self.metadata.to_json(), folder)
        self._pending = PendingCommit(state.progress.position, ledger.lap("commit"), waited, sizes)
        self._covered = step

    @property
    def part_ended(self) -> int:
        """1 from when this rank has written its part of a commit, or could not, until all know of it; else 0. The pulse
        adds these up."""
        return int(self._storage is not None and self._storage.committer.part() is not None)

    def poll(self, group: Group, ended: int = 0) -> None:
        """Tell the ledger of the commit under way, if it has ended. Nothing waits. All ranks call it with what all have
        heard: in how many of them `part_ended`.

        Raises Failure(78) after the first step where a commit could not hold what an optimizer has begun.
        """
        # Optimizers begin their state in the first step that moves; only then is it known what a commit has to hold.
        if not self._tried and self._state.progress.step > self._covered:
            self._tried = True
            self.prepare()
        # The pulse is the same sum on all ranks, so all of them gather, or none does.
        if ended == group.world:
            self._join(group.gather_json(self._turn()))
        self._record_commit_result(self._storage and self._storage.committer.finished())

    def settle(self, group: Group) -> None:
        """Wait for the commit under way, all ranks together: in turns, so that nobody takes one of them for a hang.

        Raises a rank's Failure(74) on every rank where its disk has stalled for too long.
        """
        # In turns, with a sign of life in each: the watchdog of a rank that waits for another's disk must not end it.
        while True:
            turn = self._turn()
            # Two numbers of each rank: what many say at length takes as long as there are ranks, and mostly they wait.
            waiting, telling = group.added([turn == {}, bool(turn)])
            if telling:
                turns = group.gather_json(turn)
                _require_none_failed(turns)
                self._join(turns)
            elif not waiting:
                return
            self._state.engine.heartbeat.enter("commit")

    def hold(self, group: Group) -> None:
        """Wait for the commit that was begun just now, all ranks together: training stands still for it.

        Raises what `settle` raises.
        """
        self.settle(group)
        self._stood_still()

    def _turn(self) -> dict[str, Any] | None:
        """Wait a moment for what this rank has under way: None where that is nothing any more, {} where it is still,
        what has become of its part of a commit, or the failure."""
        if self._storage is None:
            return None
        try:
            if self._storage.committer.busy(TURN):
                return {}
        except Failure as failure:
            return {"failure": failure.outcome.to_json()}
        part = self._storage.committer.part()
        return part and {"part": part, "held": self._pending.held if self._pending else {}}

    def _join(self, turns: Sequence[dict[str, Any] | None]) -> None:
        """Where every rank's part has ended, rank 0 makes a commit of them."""
        if self._storage is None or {} in turns:
            return
        if not all(turns):  # a rank has begun none: it is about to end the run
            self._covered = -1
            self._storage.committer.drop()
        elif self._storage.committer.rank:
            # It has given its part to rank 0, and can begin the next one.
            self._storage.committer.drop()
            if self._storage.mirror:
                self._storage.mirror.push(name_of(self._covered))  # its files, once the commit is there
        else:
            total: Counter[str] = Counter()
            for turn in turns:
                total.update(turn["held"] if turn else {})
            self._pending = self._pending and self._pending._replace(held=dict(total))
            self._storage.committer.seal([turn["part"] for turn in turns if turn])

    def close(self) -> Failure | None:
        """Wait for the copy of the last commit, which is settled; the failure where that one is not there: nothing
        comes after it."""
        result = None
        if self._storage:
            result = self._storage.committer.wait()
        self._stood_still()
        self._record_commit_result(result)
        if self._storage and self._storage.mirror:
            self._storage.mirror.close(MIRROR_PATIENCE)
            self._records.note(*self._storage.mirror.notes())
        if isinstance(result, CommitFailure):
            return _failed(result)
        return self._sync.failure  # an earlier one that all ranks have not acted on yet

    def _stood_still(self) -> None:
        """Nothing was trained since the last lap, for the commit under way."""
        seconds = self._ledger.lap("commit")
        self._pending = self._pending and self._pending.longer(seconds)

    @property
    def metadata(self) -> CommitMetadata:
        """That of a commit of this moment. Every record so far is written: the chain's hash covers them."""
        self._ledger.flush()
        return replace(self._metadata, position=self._state.progress.position, ledger=self._ledger.tail)

    def _record_commit_result(self, result: Commit | CommitFailure | None) -> None:
        """Tell the ledger how the commit under way has ended, where it has."""
        if result is None or self._pending is None or self._storage is None:
            return
        pending, self._pending = self._pending, None
        self._records.tell(result, pending, self._storage.late_code)
        if isinstance(result, CommitFailure):
            self._covered = -1  # it is tried again when a commit is due
            if self._storage.committer.failures >= MAX_FAILURES or result.lasting:
                self._sync.failure = _failed(result)
            return
        self._metadata = replace(self._metadata, parent=result.name)
        # After the record: a copy is made of commits that the ledger has.
        if self._storage.mirror:
            self._storage.mirror.push(result.name)
            self._records.note(*self._storage.mirror.notes())


def _require_none_failed(turns: Sequence[dict[str, Any] | None]) -> None:
    """Raises the Failure that a rank has told, on every rank."""
    for turn in turns:
        if turn and "failure" in turn:
            raise Failure.of(Outcome.from_json(turn["failure"]))


def _failed(result: CommitFailure) -> Failure:
    return Failure(result.code, result.cause, result.hint, step=result.step)
