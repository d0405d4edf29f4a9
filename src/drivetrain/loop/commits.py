"""A run's commits, as the loop makes them: begun at a boundary, written beside training, told once they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from drivetrain.checkpoint.commits import MAX_FAILURES, Commit, CommitFailure, Committer
from drivetrain.checkpoint.mirror import Mirror
from drivetrain.checkpoint.tensors import require_writable
from drivetrain.ledger.queue import TURN
from drivetrain.ledger.records import CodeRecord, CommitRecord, MissRecord, NoteRecord
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
    """What writes commits, on the rank that does, and what copies them elsewhere, if anything does. `late_code` gives
    what the ledger should have of code that a commit has found to be loaded since the start."""

    committer: Committer
    mirror: Mirror | None
    late_code: Callable[[int], Iterable[CodeRecord]] = lambda _: ()


class PendingCommit(NamedTuple):
    """A commit under way: of which position (samples), how many seconds training stood still for it, and for the one
    before it, and what it holds, in bytes by kind."""

    position: int
    seconds: float
    waited: float
    held: dict[str, int]


class Commits:
    """Begins commits, one at a time, and tells the ledger how each has ended.

    Every rank has one, so that all know alike which step is covered; without `storage` nothing is written.
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
        self._coverage = coverage
        self._storage = storage
        self._pending: PendingCommit | None = None
        self._tried = False
        self._covered = -1  # the step that is committed, or whose commit is under way

    def resume(self, step: int) -> None:
        """Go on from the commit of this step."""
        self._covered = step

    def prepare(self) -> None:
        """Before the first step. Raises Failure(78) where a commit could not hold a tensor of this state."""
        tensors = self._state.tensors
        require_writable(tensors)
        if self._storage:
            self._storage.committer.prepare(tensors)

    def covers(self, step: int) -> bool:
        """Whether this step needs no commit: there is one, or it is under way."""
        return self._covered == step

    def begin(self) -> None:
        """Begin the commit of this boundary. The one before has been waited for, by `settle`."""
        state, ledger = self._state, self._ledger
        step = state.progress.step
        # One at a time, and told first: the new manifest names the one before, and the ledger's tail covers its record.
        self.poll()
        waited, sizes = ledger.lap("commit"), {}
        if self._storage:
            tree = state.tree()
            sizes = held(state.engine, tree.tensors)
            self._storage.committer.begin(step, tree, self.metadata.to_json())
        self._pending = PendingCommit(state.progress.position, ledger.lap("commit"), waited, sizes)
        self._covered = step

    def poll(self) -> None:
        """Tell the ledger of the commit under way, if it has ended. Nothing waits.

        Raises Failure(78) after the first step where a commit could not hold what an optimizer has begun.
        """
        if not self._tried and self._state.progress.step > self._covered:
            self._tried = True
            require_writable(self._state.tensors)
        if self._storage and self._pending:
            self._record_commit_result(self._storage.committer.finished())

    def settle(self, group: Group) -> None:
        """Wait for the commit under way, all ranks together: in turns, so that nobody takes one of them for a hang.

        Raises the leader's Failure(74) on every rank where the disk has stalled for too long.
        """
        while (told := group.broadcast_json(self._turn())) is not None:
            if told:
                raise Failure.of(Outcome.from_json(told))
            self._state.engine.heartbeat.enter("commit")

    def hold(self, group: Group) -> None:
        """Wait for the commit that was begun just now, all ranks together: training stands still for it.

        Raises what `settle` raises.
        """
        self.settle(group)
        self._pending = _longer(self._pending, self._ledger.lap("commit"))

    def _turn(self) -> dict[str, Any] | None:
        """Wait a moment for the commit under way: None where none is any more, {} where one is, or the failure."""
        try:
            busy = self._storage is not None and self._storage.committer.busy(TURN)
        except Failure as failure:
            return failure.outcome.to_json()
        return {} if busy else None

    def close(self) -> Failure | None:
        """Wait for the copy of the last commit, which is settled; the failure where that one is not there: nothing
        comes after it."""
        result = None
        if self._storage:
            result = self._storage.committer.wait()
        self._pending = _longer(self._pending, self._ledger.lap("commit"))  # nothing is trained meanwhile
        self._record_commit_result(result)
        if self._storage and self._storage.mirror:
            self._storage.mirror.close(MIRROR_PATIENCE)
            self._note_mirror(self._storage.mirror)
        if isinstance(result, CommitFailure):
            return _failed(result)
        return self._sync.failure  # an earlier one that all ranks have not acted on yet

    @property
    def metadata(self) -> CommitMetadata:
        """That of a commit of this moment. Every record so far is written: the chain's hash covers them."""
        self._ledger.flush()
        return replace(self._metadata, position=self._state.progress.position, ledger=self._ledger.tail)

    def _record_commit_result(self, result: Commit | CommitFailure | None) -> None:
        """Tell the ledger how the commit under way has ended, where it has."""
        if result is None or self._pending is None:
            return
        pending, self._pending = self._pending, None
        self._record_late_code(result.step)
        if isinstance(result, CommitFailure):
            self._record_failure(result)
            return
        self._metadata = replace(self._metadata, parent=result.name)
        self._ledger.record(
            CommitRecord(
                step=result.step,
                position=pending.position,
                name=result.name,
                seconds=pending.seconds + pending.waited,
                waited=pending.waited,
                writing=result.writing,
                bytes=result.bytes,
                held=pending.held,
                manifest=result.manifest,
                removed=result.removed,
                coverage=self._coverage(pending.position),
            )
        )
        # After the record: a copy is made of commits that the ledger has.
        if self._storage and self._storage.mirror:
            self._storage.mirror.push(result.name)
            self._note_mirror(self._storage.mirror)

    def _record_failure(self, result: CommitFailure) -> None:
        """Its step is not covered, and is tried again when a commit is due. After too many, all ranks end."""
        self._covered = -1
        self._ledger.record(MissRecord(step=result.step, code=int(result.code), cause=result.cause))
        assert self._storage is not None
        if self._storage.committer.failures >= MAX_FAILURES or result.lasting:
            self._sync.failure = _failed(result)

    def _record_late_code(self, step: int) -> None:
        assert self._storage is not None
        for record in self._storage.late_code(step):
            names = ", ".join(record.files)
            self._ledger.record(record)
            self._ledger.record(NoteRecord(text=f"code that was not found at the start was loaded: {names}"))

    def _note_mirror(self, mirror: Mirror) -> None:
        for text in mirror.notes():
            self._ledger.record(NoteRecord(text=text))


def _longer(pending: PendingCommit | None, seconds: float) -> PendingCommit | None:
    """The commit under way, for which training has stood still for so much longer."""
    return pending and pending._replace(seconds=pending.seconds + seconds)


def _failed(result: CommitFailure) -> Failure:
    return Failure(result.code, result.cause, result.hint, step=result.step)
