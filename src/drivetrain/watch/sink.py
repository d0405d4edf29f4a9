"""Sinks and what feeds them: a thread that follows the ledger, so that training pays nothing and waits for nobody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from drivetrain.ledger.ledger import chain_of, parse_line
from drivetrain.ledger.records import Record

_POLL = 0.1  # seconds
_PATIENCE = 30.0  # seconds without a record, at the end; trackers take fewer


class Sink(Protocol):
    """Something that shows or forwards records. It sees all of them, from the first of the run, in order."""

    def record(self, record: Record) -> None:
        """Take one record."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


class Follower:
    """Hands every record of a ledger, those that are there and those that come, to each sink.

    A sink that raises is dropped with one line on stderr; its outage stops neither the run nor the others.
    """

    def __init__(self, path: Path, sinks: Sequence[Sink]) -> None:
        self._path = path
        self._sinks = list(sinks)
        self._ended = threading.Event()
        self._offset = 0
        self._chain = ""
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand over what is there, then close the sinks. Where the disk stalls and nothing moves, they are left."""
        self._ended.set()
        seen = -1
        while self._thread.is_alive() and seen != self._offset:
            seen = self._offset
            self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            _tell(f"{self._path} does not answer: sinks are left behind")

    def _follow(self) -> None:
        ended = False
        try:
            while not ended:
                # Looked at before the ledger is read: what was written before the end is then handed over.
                ended = self._ended.wait(_POLL)
                self._hand_over()
        except (ValueError, OSError) as error:
            _tell(f"the ledger cannot be followed, the run goes on: {error}")
        finally:
            for sink in list(self._sinks):
                self._try(sink, sink.close)

    def _hand_over(self) -> None:
        """Give the sinks all whole lines beyond the offset."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    record = parse_line(line, self._chain)
                    if record is None:  # a torn line that its writer cuts off next, or damage that the writer names
                        return
                    self._offset += len(line)
                    self._chain = chain_of(line)
                    # A copy, since `_try` drops a sink that raises.
                    for sink in list(self._sinks):
                        self._try(sink, lambda sink=sink, record=record: sink.record(record))
        except FileNotFoundError:
            pass

    def _try(self, sink: Sink, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._sinks = [other for other in self._sinks if other is not sink]
            name, why = type(sink).__name__, f"{type(error).__name__}: {error}"
            with suppress(Exception):  # a terminal's live line, for one, must not stay behind
                sink.close()
            _tell(f"{name} is dropped, the run goes on: {why}")


def _tell(text: str) -> None:
    with suppress(OSError):  # the terminal is gone
        print(f"drivetrain: {text}", file=sys.stderr)
