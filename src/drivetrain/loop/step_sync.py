"""What the ranks tell each other in a step: whole numbers that the pulse adds up over all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Failure

UNITS = 8
"""How many units `Task.counts` may have."""
_CODES = tuple(code for code in Exit if code is not Exit.DONE)
_DIGEST = (1 << 64) - 1


class _Said(NamedTuple):
    """What every rank says of itself in one number each, and hears as the sum over all ranks."""

    commands: int
    """1 where it has heard a command."""
    parts: int
    """1 where it has written its part of a commit, or could not."""
    digest: int
    """Of the step's sample ids; adds up modulo 2^64."""


WIDTH = len(_CODES) + len(_Said._fields) + UNITS
"""Numbers of a pulse: for each exit code how many ranks ask for it, what each rank says, counts of the next step."""


@dataclass(frozen=True)
class SyncResult:
    """What all ranks together said: why to end (the largest code that one asks for, 0 for none), whether there are
    commands, in how many ranks a part of a commit has ended, the digest of all sample ids of the step, the next step's
    global counts."""

    end: int
    commands: bool
    parts: int
    digest: int
    counts: dict[str, int]


class StepSync:
    """Sends this rank's numbers at the start of a step and hears the sums at its end, off the training stream.

    The counts of step s+1 travel with the pulse of step s, so that divisors are known before backward. A process that
    is alone hears itself, and a stop as soon as it is asked for.
    """

    def __init__(
        self,
        pulse: Pulse,
        stops: StopRequests,
        *,
        alone: bool,
        speaks: bool = True,
        commanded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`alone`: there is no other rank. `speaks`: what this rank reads is counted here, and not by another one.
        `commanded` says whether this rank has heard a command."""
        self._pulse = pulse
        self._stops = stops
        self._commanded = commanded
        self._alone = alone
        self._speaks = speaks
        self.failure: Failure | None = None
        """Why this rank wants all to end with an error; they do at the next boundary."""
        self.deadline = math.inf
        """Unix time from which on this rank asks for a stop."""
        self.part_ended: Callable[[], int] = lambda: 0
        """1 where this rank has written its part of a commit, or could not."""
        self._units: tuple[str, ...] = ()
        self._digest = 0
        self._counts: dict[str, int] = {}

    def send(self, batch: LocalBatch | None = None, ahead: LocalBatch | None = None) -> None:
        """Start telling: whether to end, what `batch` read, what `ahead` counts.

        Raises ValueError where a task counts more than `UNITS` units.
        """
        self._digest = batch.digest if batch else 0
        self._counts = ahead.counts if ahead else {}
        if self._alone:
            return
        if len(self._counts) > UNITS:
            raise ValueError(f"counts() gives {len(self._counts)} units; {UNITS} is the most")
        # Sorted: a place in the row means the same unit on every rank.
        self._units = tuple(sorted(self._counts)) or self._units  # a rank without samples counts nothing
        requested = self._requested
        asked = [int(code == requested) for code in _CODES]
        digest, told = (_signed(self._digest), self._counts) if self._speaks else (0, {})
        counts = [told.get(unit, 0) for unit in self._units]
        row = [*asked, *_Said(int(self._commanded()), self.part_ended(), digest), *counts]
        self._pulse.send(row + [0] * (WIDTH - len(row)))

    def receive(self) -> SyncResult:
        """Wait for the sums; every rank hears the same."""
        if self._alone:
            return SyncResult(self._requested, self._commanded(), 0, self._digest, self._counts)
        sums = self._pulse.receive()
        asked, sums = sums[: len(_CODES)], sums[len(_CODES) :]
        said, numbers = _Said(*sums[:-UNITS]), sums[-UNITS:]
        end = max((code for code, ranks in zip(_CODES, asked, strict=True) if ranks), default=Exit.DONE)
        counts = dict(zip(self._units, numbers, strict=False))
        return SyncResult(end, said.commands > 0, said.parts, said.digest & _DIGEST, counts)

    @property
    def _requested(self) -> int:
        if self.failure:
            return self.failure.outcome.code
        if time.time() >= self.deadline and self._stops.requested is None:
            self._stops.requested = "the deadline"  # as by a signal, so that it is the cause that the exit names
        return Exit.STOPPED if self._stops.requested is not None else Exit.DONE


def _signed(digest: int) -> int:
    """The same 64 bits as a signed number."""
    return digest - (1 << 64) if digest >> 63 else digest
