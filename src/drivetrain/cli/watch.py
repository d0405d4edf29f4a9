"""The live line of a run that trains somewhere else: `drivetrain control RUN watch`."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from rich.console import Console

from drivetrain.ledger.records import AttemptRecord, ExitRecord, Record
from drivetrain.runtime.lease import alive
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch.console import ConsoleSink, tolerant
from drivetrain.watch.sink import Follower, Sink

_BEFORE = 5.0  # seconds of what was, to begin with


def watch(run: Path) -> int:
    """Show what the run does from now on, until its attempt ends or Ctrl-C; Failure(66) where nobody trains there."""
    if not (run / "ledger.jsonl").is_file() or not alive(run):
        raise Failure(Exit.INPUT_MISSING, f"nobody trains in {run}", "`drivetrain report` says how it stands")
    newest = Newest(ConsoleSink(tolerant(Console()), 0.0), time.time() - _BEFORE)
    with closing(Follower(run / "ledger.jsonl", [newest])), suppress(KeyboardInterrupt):
        while not newest.ended.wait(1.0) and alive(run):
            pass
    return Exit.DONE


class Newest:
    """Passes on the newest attempt's own record, and of the others those since a Unix time."""

    def __init__(self, sink: Sink, since: float) -> None:
        self.ended = threading.Event()
        self._sink = sink
        self._since = since
        self._attempt: AttemptRecord | None = None

    def record(self, record: Record) -> None:
        """Take one record."""
        if isinstance(record, AttemptRecord):
            self._attempt = record
            self.ended.clear()
        if record.time < self._since:
            return
        if self._attempt:
            self._sink.record(self._attempt)
            self._attempt = None
        if not isinstance(record, AttemptRecord):
            self._sink.record(record)
        if isinstance(record, ExitRecord):
            self.ended.set()

    def close(self) -> None:
        """No more will come."""
        self._sink.close()
