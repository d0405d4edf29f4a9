"""What the loop tells the ledger, and where the seconds of an attempt went."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivetrain.ledger.comparison import still_promised, unequal
from drivetrain.ledger.ledger import told_step
from drivetrain.ledger.queue import TURN, LedgerQueue
from drivetrain.ledger.records import (
    AttemptRecord,
    EvaluationRecord,
    ExitRecord,
    LoopRecord,
    RollbackRecord,
    StepRecord,
)
from drivetrain.ledger.resume_index import ResumeIndex
from drivetrain.loop.callbacks import Callbacks
from drivetrain.loop.progress import Progress
from drivetrain.runtime.heartbeat import Heartbeat

_BUCKETS = ("start", "wait", "step", "evaluation", "commit", "profile", "pause", "rollback")
GROUP = 0.1
"""Seconds for which a step's record may wait for others. Steps that take longer are written one by one."""
RECENT = 1.0
"""Seconds of records that a rank without a ledger remembers: more than the one that keeps it may have lost."""


class Stopwatch:
    """Laps without gaps: every moment since the start belongs to exactly one of them."""

    def __init__(self, started: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.last = started  # when the last lap ended

    def lap(self) -> float:
        """Seconds since the last lap ended."""
        now = self._clock()
        seconds, self.last = now - self.last, now
        return seconds


class LedgerWriter:
    """Writes one attempt's records; on ranks that do not keep the ledger there is no writer, and nothing is written.

    Records of short steps wait up to `GROUP` seconds and are handed over together, which takes a third of the time;
    every other record is handed over at once, after those. None of it waits for the disk, but for `sync`. `seconds`
    adds up the attempt's time by bucket.
    """

    def __init__(
        self,
        writer: LedgerQueue | None,
        attempt: int,
        watch: Stopwatch,
        history: ResumeIndex | None = None,
        heartbeat: Heartbeat | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.attempt = attempt
        self.watch = watch
        self.seconds: dict[str, float] = dict.fromkeys(_BUCKETS, 0.0)
        self.compiling: Callable[[], float] = float
        """Seconds that torch's compiler has taken since this was last asked."""
        self.compilations: Callable[[], Iterable[LoopRecord]] = tuple
        """What the ledger is told of the graphs that it has made since."""
        self._compiled = 0.0
        self._untold = False
        self._writer = writer
        self._history = history or ResumeIndex()
        self._heartbeat = heartbeat or Heartbeat()
        self._promised: dict[int, StepRecord] = {}
        self._kept: list[dict[str, Any]] = []
        self._recent: deque[dict[str, Any]] = deque()
        self.owed: list[tuple[str, int]] = []
        """What the ledger must have beside the recent steps, by kind and step: what comes later hangs on it."""
        self._written = watch.last
        self._callbacks = callbacks or Callbacks((), {}, leader=False)
        self._told_steps = self._callbacks.hears(StepRecord.kind)

    def lap(self, bucket: str) -> float:
        """End a lap that belongs to this bucket, but for what was compiled in it: that is a bucket of its own."""
        seconds = self.watch.lap()
        # At most the lap: the compiler's own clock may have begun before it, and no moment may count twice.
        if compiled := min(self.compiling(), seconds):
            self._untold = True
            self.seconds["compile"] = self.seconds.get("compile", 0.0) + compiled
            seconds -= compiled
            if bucket == "step":
                self._compiled += compiled
        self.seconds[bucket] += seconds
        return seconds

    def compiled(self) -> float:
        """Seconds of steps in which something was compiled, since this was last asked. The ledger is told of each
        graph, also of those that the start or an evaluation took."""
        if self._untold:
            self._untold = False
            for record in self.compilations():
                self.record(record)
        compiled, self._compiled = self._compiled, 0.0
        return compiled

    def step(self, **fields: Any) -> str:
        """The record of one step; what of it is not as it was when an equal claim made it before, if anything."""
        # Plain fields: a record is made of them only where a callback wants to see it.
        self._kept.append(fields)
        if self.watch.last - self._written >= GROUP:
            self.flush()
        if self._told_steps:
            self._callbacks.tell(StepRecord(**fields, attempt=self.attempt))
        if not self._promised:
            return ""
        made = self._promised.pop(fields["step"], None)
        return unequal(made, told_step(fields)) if made else ""

    def record(self, record: LoopRecord) -> None:
        """Any other record; its time and attempt are filled in."""
        self.flush()  # the ledger has the order in which things happened
        written = replace(record, time=time.time(), attempt=self.attempt)
        if self._writer:
            self._history.add(written)
            if isinstance(written, AttemptRecord):
                self._promised = self._history.promised()
            self._promised = still_promised(self._promised, written)
            self._writer.append(written.to_json())
        else:
            self._remember(written)
        self._callbacks.tell(written)

    @property
    def tail(self) -> str:
        """The chain's newest hash; empty where no ledger is kept."""
        return self._writer.tail if self._writer else ""

    @property
    def behind(self) -> bool:
        """Whether the disk stalls that the ledger is on."""
        return self._writer is not None and self._writer.behind

    def sync(self) -> None:
        """Wait until all records are durable."""
        ticket = self.request()
        while not self.durable(ticket):
            pass

    def request(self) -> int:
        """Have all records made durable; a ticket for `durable`. Nothing waits."""
        self.flush()
        return self._writer.request() if self._writer else 0

    def durable(self, ticket: int) -> bool:
        """Whether all records before a request are durable, in `TURN` seconds at most.

        Each call is a sign of life: it may take as long as a stall is borne with, and is no hang.
        """
        self._heartbeat.again()
        return self._writer is None or self._writer.reached(ticket, TURN)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The records of the last steps, for whoever has to write them in the ledger keeper's place."""
        return [*self._recent, *self._kept]

    def complete(self, records: Sequence[Mapping[str, Any]], last: int, attempt: int) -> None:
        """Write the step records that come after step `last`, which the attempt before made and could not write."""
        if self._writer:
            self._writer.append_steps(attempt, (fields for fields in records if fields["step"] > last))

    def flush(self) -> None:
        """Hand the records over that wait. Raises Failure: 74 or 85 where earlier ones could not be written."""
        self._written = self.watch.last
        if self._writer:
            self._writer.append_steps(self.attempt, self._kept)
            self._kept = []  # only now: where it raises they are not taken, and are handed over with the next record
        else:
            kept, self._kept = self._kept, []
            # The rank that writes them may die before it has: a survivor then hands them over with its state.
            self._recent.extend(kept)
            while self._recent and self._recent[0]["time"] < time.time() - RECENT:
                self._recent.popleft()

    def _remember(self, record: LoopRecord) -> None:
        """The rank that writes it may die before it has; then nobody may go on from what came after it."""
        oldest = self._recent[0]["step"] if self._recent else 0
        self.owed = [(kind, step) for kind, step in self.owed if step >= oldest - 1]
        if isinstance(record, RollbackRecord):
            self.owed = [(kind, step) for kind, step in self.owed if step <= record.to]
        if isinstance(record, (EvaluationRecord, RollbackRecord)):
            self.owed.append((record.kind, record.step))

    def exit(self, code: int, cause: str, progress: Progress) -> None:
        """The last record of an attempt; it is durable once `sync` returns."""
        self.compiled()  # graphs of the last evaluation
        step, position = progress.step, progress.position
        self.record(ExitRecord(code=code, cause=cause, step=step, position=position, seconds=self.seconds))
