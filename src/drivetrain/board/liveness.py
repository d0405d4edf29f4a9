"""Whether somebody trains in a run directory, as far as reading it tells. Pure, with the clock passed in."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.runtime.lease import PATIENCE, HolderSign


@dataclass(frozen=True)
class Seen:
    """The sign of a holder, and since when (by a monotonic clock, seconds) its counter has stood there."""

    sign: HolderSign
    since: float

    def alive(self, clock: float) -> bool:
        """Whether it is to be thought alive at this time."""
        if self.sign.released or self.sign.died_here:
            return False
        return clock - self.since < PATIENCE


def look(before: Seen | None, sign: HolderSign | None, clock: float, now: float) -> Seen | None:
    """What is seen, after what was seen before. At the first look the age of the counter's file is believed."""
    if sign is None:
        return None
    if before is None:
        return Seen(sign, clock - max(0.0, now - sign.moved))
    same = before.sign.counter == sign.counter and before.sign.holder.epoch == sign.holder.epoch
    return Seen(sign, before.since if same else clock)
