"""Records on their way to the ledger's file, so that a disk that stalls holds up no step."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.ledger.ledger import LedgerFile, body_of, chained, step_body
from drivetrain.spec.exits import Exit, Failure

MOST = 64 << 20
"""Bytes of records that may wait for the disk."""
BEHIND = 1.0
"""Seconds without progress from which on the disk counts as stalled, whatever comes of it."""
TURN = 0.5
"""Seconds after which whoever waits for the disk looks up, and shows that it lives."""


@dataclass(frozen=True)
class Patience:
    """What is borne of a run directory that takes nothing: for so many seconds, and so many bytes that wait for it."""

    run: Path
    seconds: float = 1800.0
    most: int = MOST

    def failure(self, seconds: float, waiting: int) -> Failure | None:
        """74 where nothing was written for so many seconds, and so many bytes wait; None where that is borne."""
        if seconds <= self.seconds and waiting <= self.most:
            return None
        size = f"{waiting / 1e6:.1f} MB of records wait in memory"
        bound = f"stop.stall allows {self.seconds:g} s"
        if waiting > self.most:
            bound = f"at most {self.most / 1e6:.1f} MB may wait"
        return stalled(self.run, seconds, f"{size}, {bound}")


def stalled(run: Path, seconds: float, what: str) -> Failure:
    """74 for a run directory to which nothing was written for so many seconds."""
    cause = f"{run} stalls: nothing could be written to it for {seconds:.1f} s; {what}"
    hint = "see that its disk or file server answers; the same command then goes on from the last commit"
    return Failure(Exit.STORAGE, cause, hint, stalled=round(seconds, 1))


class Backlog:
    """What a disk was asked for and has not done yet; its user holds a lock around every call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.waiting: deque[tuple[bytes, str]] = deque()
        """Lines to be written, each with the hash of its last record."""
        self.bytes = 0
        self.asked = self.durable = 0
        """How often all before was to be, and has been, made durable."""
        self._clock = clock
        self._since = 0.0  # when the disk last took something, or was first asked to

    @property
    def owed(self) -> bool:
        """Whether the disk still has something to do."""
        return bool(self.waiting) or self.durable < self.asked

    @property
    def stood(self) -> float:
        """Seconds for which the disk has taken nothing of what it was asked to."""
        return self._clock() - self._since if self.owed else 0.0

    def add(self, whole: bytes, tail: str) -> None:
        """Some more to write."""
        self._begin()
        self.waiting.append((whole, tail))
        self.bytes += len(whole)

    def ask(self) -> int:
        """All before is to be made durable; `durable` is this number, or more, once it is."""
        self._begin()
        self.asked += 1
        return self.asked

    def taken(self) -> None:
        """The first of what waited is written."""
        self.bytes -= len(self.waiting.popleft()[0])
        self._since = self._clock()

    def synced(self, asked: int) -> None:
        """All before this number is durable."""
        self.durable = asked
        self._since = self._clock()

    def _begin(self) -> None:
        if not self.owed:
            self._since = self._clock()


class LedgerQueue:
    """Takes records as a `LedgerFile` does, and never waits for the disk: a thread, the file's only user, writes them.

    They are chained as they come, so `tail` is known at once. What cannot be written is raised where the next record is
    handed over, which is then not taken; the ones before it stay, in order, and are tried again.
    """

    def __init__(
        self,
        file: LedgerFile,
        patience: Patience,
        allowed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allowed` raises where the directory is no longer ours, before anything is written."""
        self.tail = file.tail
        self._file = file
        self._patience = patience
        self._allowed = allowed
        self._changed = threading.Condition()
        self._backlog = Backlog(clock)
        self._failure: Exception | None = None
        self._told = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    def append(self, record: Mapping[str, Any]) -> None:
        """Hand a record over. Raises Failure: 74 where earlier ones cannot be written, 85 where they no longer may."""
        self._add([body_of(record)])

    def append_steps(self, attempt: int, steps: Iterable[Mapping[str, Any]]) -> None:
        """Hand the records of steps over, as `LedgerFile.append_steps` takes them. Raises what `append` raises."""
        self._add([step_body(attempt, fields) for fields in steps])

    @property
    def behind(self) -> bool:
        """Whether the disk stalls."""
        with self._changed:
            return self._backlog.stood > BEHIND

    def request(self) -> int:
        """Have all that was handed over made durable; a ticket for `reached`. Nothing waits."""
        with self._changed:
            self._changed.notify_all()
            return self._backlog.ask()

    def reached(self, ticket: int, within: float) -> bool:
        """Whether all before a request is durable, in so many seconds at most. Raises what `append` raises."""
        backlog = self._backlog
        with self._changed:
            self._changed.wait_for(lambda: backlog.durable >= ticket or self._failure, within)
            if backlog.durable >= ticket:
                return True
            # Not taken away: where another thread asks, the one that trains still has to hear of it.
            if failure := self._failure or self._overdue():
                raise failure
            return False

    def sync(self) -> None:
        """Wait until all that was handed over is durable. Raises what `append` raises."""
        ticket = self.request()
        while not self.reached(ticket, TURN):
            pass

    def close(self) -> None:
        """Write what waits, as long as the disk is borne with, and close the file. Raises what nobody has heard yet."""
        with self._changed:
            self._closing = True
            self._backlog.ask()
            self._changed.notify_all()
        while self._thread.is_alive() and not self._overdue():
            self._thread.join(TURN)
        if (failure := self._failure or self._overdue()) and not self._told:
            raise failure

    def _add(self, bodies: Iterable[str]) -> None:
        self._raise()
        whole, tail = chained(self.tail, bodies)
        if whole:
            with self._changed:
                self._backlog.add(whole, tail)
                self.tail = tail
                self._changed.notify_all()

    def _raise(self) -> None:
        """Raise what has gone wrong, if anything has; what failed is then tried again."""
        with self._changed:
            if self._overdue():
                # Where the process itself was stopped for so long, the thread may just not have had its turn.
                self._changed.wait_for(lambda: not self._overdue(), TURN)
            failure, self._failure = self._failure or self._overdue(), None
            if failure:
                self._told = True
                self._changed.notify_all()
                raise failure

    def _overdue(self) -> Failure | None:
        """What the disk's silence has come to, if it is borne no longer."""
        return self._patience.failure(self._backlog.stood, self._backlog.bytes)

    def _work(self) -> None:
        """The thread: whenever there is something to do, until nothing is left or nothing more can be done."""
        while self._wait():
            self._try(self._write)
        self._try(self._file.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever it is: the thread that trains has to hear of it
            failure = error
            if isinstance(error, OSError):
                cause = f"the ledger cannot be written: {error}"
                failure = Failure(Exit.STORAGE, cause, "free space, then start again")
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or (self._backlog.owed and not self._failure))
            return self._backlog.owed and not self._failure

    def _write(self) -> None:
        """All that waits, then what was to be durable by now."""
        backlog = self._backlog
        with self._changed:
            asked, count = backlog.asked, len(backlog.waiting)
        # One by one, outside of the lock: of many that wait, a disk that is almost full has the first.
        for _ in range(count):
            whole, tail = backlog.waiting[0]
            self._allowed()
            self._file.write(whole, tail)
            with self._changed:
                backlog.taken()
                self._changed.notify_all()
        if backlog.durable < asked:
            self._file.sync()
            with self._changed:
                backlog.synced(asked)
                self._changed.notify_all()
