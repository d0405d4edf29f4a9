"""Whether a run that ended badly is started again, and when: a pure function of how its starts have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from drivetrain.spec.exits import Exit, Outcome

PAUSE = 1.0
"""Seconds before the second restart since something new was committed; twice as many before each further one."""
LONGEST_PAUSE = 30.0
_HERE = frozenset({Exit.PEER_UNAVAILABLE, Exit.CORRUPTION_SUSPECTED, Exit.HANG})
"""The retryable codes that a restart on the same machine can help: of 74 the run has tried three commits already."""


@dataclass(frozen=True)
class Ended:
    """How one start of the processes ended.

    `killed`: a process died by a signal. `reached` is the highest step that can be resumed from, None for none.
    """

    outcome: Outcome
    killed: bool
    reached: int | None


@dataclass(frozen=True)
class Retry:
    """Start again after this many seconds."""

    pause: float


@dataclass(frozen=True)
class GiveUp:
    """This is how the run has ended."""

    outcome: Outcome


def next_start(history: Sequence[Ended], most: int) -> Retry | GiveUp:
    """What follows the last of these ends: another start, or the outcome that stays.

    After `most` restarts without a newly committed step the run has crashed for good.
    """
    last = history[-1]
    # Out of memory is left alone although it is a kill: the same again would end the same.
    if not (last.killed or last.outcome.code in _HERE) or last.outcome.where.get("class") == "oom":
        return GiveUp(last.outcome)
    # Counted back from the end, to the last start that made something new to resume from.
    fruitless = 0
    for before, after in zip(history[-2::-1], history[:0:-1], strict=True):
        if (after.reached or 0) > (before.reached or 0):
            break
        fruitless += 1
    if most == 0:
        return GiveUp(last.outcome)
    if fruitless == 0:
        return Retry(0.0)
    if fruitless < most:
        return Retry(min(LONGEST_PAUSE, PAUSE * 2 ** (fruitless - 1)))
    return GiveUp(
        replace(
            last.outcome,
            code=Exit.INTERNAL,
            cause=f"crash loop: {most} restarts without a newly committed step; the last end: {last.outcome.cause}",
            hint="look at the samples of the step that crashes; drivetrain report tells of every start",
            where=last.outcome.where | {"restarts": len(history) - 1},
        )
    )
