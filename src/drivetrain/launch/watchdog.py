"""When a process hangs: a pure judgement of its signs of life, with the clock injected."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from drivetrain.runtime.heartbeat import HeartbeatSlot

SLOW = frozenset(
    {"start", "evaluation", "show", "snapshot", "commit", "profile", "compare", "rollback", "handover", "teardown"}
)
"""Phases that may take long without a sign of getting on: they open data, score large batches, write."""
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
    """Processes that hang: what their signs were, and for how many seconds nothing has come."""

    signs: dict[int, HeartbeatSlot]
    seconds: float

    def __str__(self) -> str:
        each = [f"rank {rank} at step {sign.step} ({sign.phase})" for rank, sign in self.signs.items()]
        return f"no sign of life for {self.seconds:.1f} s from {', '.join(each)}"


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

    def look(self, signs: dict[int, HeartbeatSlot], now: float) -> Hang | None:
        """Judge the processes that are alive, by rank."""
        if self._looked is not None and now - self._looked > FROZEN:
            self._beats.clear()
            self._moves.clear()
        self._looked = now
        for rank, sign in signs.items():
            _note(self._beats, rank, sign.beats, now)
            _note(self._moves, rank, sign.moves, now)
            if sign.seconds:
                self._steps.append(sign.seconds)
        limit = max(self.patience, STEPS * statistics.median(self._steps)) if self._steps else self.patience
        silent = [
            r for r, sign in signs.items() if now - self._beats[r][1] > limit * (3 if sign.phase == "start" else 1)
        ]
        if silent:
            return self._hang(silent, self._beats, signs, now)
        stuck = [r for r, s in signs.items() if now - self._moves[r][1] > (self.slow if self._is_slow(s) else limit)]
        if len(stuck) == len(signs) and stuck:
            guilty = [r for r in stuck if signs[r].phase not in WAITING]
            return self._hang(guilty or stuck, self._moves, signs, now)
        return None

    def _is_slow(self, sign: HeartbeatSlot) -> bool:
        return sign.phase in SLOW or (sign.phase in COMPILING and (self.compiles or not sign.seconds))

    def _hang(
        self, ranks: Sequence[int], since: dict[int, tuple[int, float]], signs: dict[int, HeartbeatSlot], now: float
    ) -> Hang:
        return Hang({rank: signs[rank] for rank in ranks}, now - min(since[rank][1] for rank in ranks))


def _note(seen: dict[int, tuple[int, float]], rank: int, count: int, now: float) -> None:
    if rank not in seen or seen[rank][0] != count:
        seen[rank] = (count, now)
