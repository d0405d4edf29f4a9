"""What the ledger is told of commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from drivetrain.checkpoint.commits import Commit, CommitFailure
from drivetrain.ledger.records import CodeRecord, CommitRecord, MissRecord, NoteRecord
from drivetrain.loop.ledger_writer import LedgerWriter

LateCode = Callable[[int], Iterable[CodeRecord]]
"""What the ledger should have, at a step, of code that a commit has found to be loaded since the start."""


class PendingCommit(NamedTuple):
    """A commit under way: of which position (samples), how many seconds training stood still for it, and for the one
    before it, and what it holds, in bytes by kind."""

    position: int
    seconds: float
    waited: float
    held: dict[str, int]

    def longer(self, seconds: float) -> PendingCommit:
        """Training has stood still for so much longer."""
        return self._replace(seconds=self.seconds + seconds)


class CommitRecords:
    """Tells the ledger how commits have ended."""

    def __init__(self, ledger: LedgerWriter, coverage: Callable[[int], dict[str, int]]) -> None:
        """`coverage` says how many samples of each source lie before a position."""
        self._ledger = ledger
        self._coverage = coverage

    def tell(self, result: Commit | CommitFailure, pending: PendingCommit, late_code: LateCode) -> None:
        """How the commit that was pending has ended."""
        for record in late_code(result.step):
            names = ", ".join(record.files)
            self._ledger.record(record)
            self.note(f"code that was not found at the start was loaded: {names}")
        if isinstance(result, CommitFailure):
            self._ledger.record(MissRecord(step=result.step, code=int(result.code), cause=result.cause))
            return
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
                written=result.written,
            )
        )

    def note(self, *texts: str) -> None:
        """What happened besides."""
        for text in texts:
            self._ledger.record(NoteRecord(text=text))
