"""When a process hangs: a pure judgement of its signs of life, with the clock injected."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from drivetrain.runtime.heartbeat import HeartbeatSlot

SLOW = frozenset(
    {
        *("start", "compile", "evaluation", "show", "snapshot", "commit"),
        *("profile", "compare", "rollback", "handover", "teardown"),
    }
)
"""Phases that may take long without a sign of getting on: they open data, compile, score large batches, write."""
COMPILING = frozenset({"forward", "backward", "optimizer"})
"""Phases that may compile: before the first step is made, and at any step of a recipe that asks for it."""
FROZEN = 5.0
"""Seconds between two looks from which on this machine was frozen as a whole: everybody's time begins anew."""
WAITING = frozenset({"reduce", "pulse", "evaluation"})
"""Phases in which a process may merely wait for the others."""
STEPS = 3
"""How many median steps a phase may take, where that is more than the patience."""
START = 600.0
"""Seconds that a slow phase may take."""


@dataclass(frozen=True)
class Hang:
    """Processes that hang, by rank: what their signs were, and for how many seconds nothing has come.

    `waits`: they beat, and each of them may merely wait for the others.
    """

    signs: dict[int, HeartbeatSlot]
    seconds: float
    waits: bool

    @property
    def who(self) -> str:
        """The processes, each with where it stands."""
        return ", ".join(f"rank {rank} at step {sign.step} ({sign.phase})" for rank, sign in self.signs.items())

    def __str__(self) -> str:
        return f"no sign of life for {self.seconds:.1f} s from {self.who}"


@dataclass
class Watchdog:
    """Looks at the signs of all processes; says which hang.

    A process hangs when its beats stop for `patience` seconds (it is stopped, or something holds the interpreter), or
    when no process gets anywhere for as long or for three median steps. `slow` bounds what may take long, such as the
    first step of a process; while it starts, beats may stop three times as long, since imports hold the interpreter.
    """

    patience: float
    slow: float = START
    compiles: bool = False
    _looked: float | None = None
    _beats: dict[int, tuple[int, float]] = field(default_factory=dict)  # rank: count, since when
    _moves: dict[int, tuple[int, float]] = field(default_factory=dict)
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=101))

    def forget(self) -> None:
        """Everybody's time begins anew: what held them up was none of them."""
        self._beats.clear()
        self._moves.clear()

    def look(self, signs: dict[int, HeartbeatSlot], now: float) -> Hang | None:
        """Judge the processes that are alive, by rank."""
        # This process was not run either, so nothing is known of the others: their time begins anew.
        if self._looked is not None and now - self._looked > FROZEN:
            self.forget()
        self._looked = now
        for rank, sign in signs.items():
            _note(self._beats, rank, sign.beats, now)
            _note(self._moves, rank, sign.moves, now)
            if sign.seconds:
                self._steps.append(sign.seconds)
        limit = self.patience
        if self._steps:
            limit = max(limit, STEPS * statistics.median(self._steps))
        silent = self._silent(signs, now, limit)
        if silent:
            return _hang(silent, self._beats, signs, now, waits=False)
        stuck = self._stuck(signs, now, limit)
        # One that gets on is what the others wait for: a hang is where nobody does. Of those, a process in a collective
        # is a victim as long as there is another that is not.
        if stuck and len(stuck) == len(signs):
            guilty = [rank for rank in stuck if signs[rank].phase not in WAITING]
            return _hang(guilty or stuck, self._moves, signs, now, waits=not guilty)
        return None

    def _silent(self, signs: dict[int, HeartbeatSlot], now: float, limit: float) -> list[int]:
        """The ranks whose beats have stopped."""
        found = []
        for rank, sign in signs.items():
            patience = 3 * limit if sign.phase == "start" else limit
            if now - self._beats[rank][1] > patience:
                found.append(rank)
        return found

    def _stuck(self, signs: dict[int, HeartbeatSlot], now: float, limit: float) -> list[int]:
        """The ranks that get nowhere."""
        found = []
        for rank, sign in signs.items():
            patience = self.slow if self._is_slow(sign) else limit
            if now - self._moves[rank][1] > patience:
                found.append(rank)
        return found

    def _is_slow(self, sign: HeartbeatSlot) -> bool:
        # No seconds: it has made no step yet, and may compile at the first one whatever the recipe says.
        return sign.phase in SLOW or (sign.phase in COMPILING and (self.compiles or not sign.seconds))


def _hang(
    ranks: Sequence[int],
    since: dict[int, tuple[int, float]],
    signs: dict[int, HeartbeatSlot],
    now: float,
    *,
    waits: bool,
) -> Hang:
    oldest = min(since[rank][1] for rank in ranks)
    return Hang({rank: signs[rank] for rank in ranks}, now - oldest, waits)


def _note(seen: dict[int, tuple[int, float]], rank: int, count: int, now: float) -> None:
    # A count that stands still keeps the moment at which it was first seen.
    if rank not in seen or seen[rank][0] != count:
        seen[rank] = (count, now)
