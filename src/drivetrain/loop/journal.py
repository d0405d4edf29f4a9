"""What the loop tells the ledger, and where the seconds of an attempt went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.ledger.ledger import Ledger

GROUP = 0.05
"""Seconds for which a step's record may wait for others. Steps that take longer are written one by one."""


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


class Journal:
    """Writes one attempt's records; on ranks that do not keep the ledger there is no writer, and nothing is written.

    Records of short steps wait up to `GROUP` seconds and are written together, which takes a third of the time; every
    other record is written at once, after those. `seconds` adds up the attempt's time by bucket.
    """

    def __init__(self, writer: Ledger | None, attempt: int, watch: Stopwatch) -> None:
        self.attempt = attempt
        self.watch = watch
        self.seconds: dict[str, float] = dict.fromkeys(("start", "wait", "step", "evaluation", "commit"), 0.0)
        self._writer = writer
        self._kept: list[dict[str, Any]] = []
        self._written = watch.last

    def lap(self, bucket: str) -> float:
        """End a lap that belongs to this bucket."""
        seconds = self.watch.lap()
        self.seconds[bucket] += seconds
        return seconds

    def step(self, **fields: Any) -> None:
        """The record of one step."""
        self._kept.append(fields)
        if self.watch.last - self._written >= GROUP:
            self._flush()

    def record(self, kind: str, **fields: Any) -> None:
        """Any other record."""
        self._flush()
        if self._writer:
            self._writer.append({"kind": kind, "time": time.time(), "attempt": self.attempt, **fields})

    @property
    def tail(self) -> str:
        """The chain's newest hash; empty where no ledger is kept."""
        return self._writer.tail if self._writer else ""

    def sync(self) -> None:
        """Make all records durable."""
        self._flush()
        if self._writer:
            self._writer.sync()

    def _flush(self) -> None:
        kept, self._kept = self._kept, []
        self._written = self.watch.last
        if self._writer:
            for fields in kept:
                self._writer.append_step(attempt=self.attempt, **fields)

    def exit(self, code: int, cause: str, progress: Mapping[str, Any]) -> None:
        """The last record of an attempt."""
        self.record(
            "exit", code=code, cause=cause, step=progress["step"], position=progress["position"], seconds=self.seconds
        )
        self.sync()
