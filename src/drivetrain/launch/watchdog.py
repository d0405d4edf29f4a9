"""When a process hangs: a pure judgement of its signs of life, with the clock injected."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from drivetrain.runtime.heart import Sign

SLOW = frozenset({"start", "show", "snapshot", "commit", "teardown"})
"""Phases that may take long without a sign of getting on: they open data, compile, write."""
WAITING = frozenset({"reduce", "pulse", "evaluation"})
"""Phases in which a process may merely wait for the others."""
STEPS = 3
"""How many median steps a phase may take, where that is more than the patience."""
START = 600.0
"""Seconds that a slow phase may take."""


@dataclass(frozen=True)
class Hang:
    """Processes that hang: what their signs were, and for how many seconds nothing has come."""

    signs: dict[int, Sign]
    seconds: float

    def __str__(self) -> str:
        each = [f"rank {rank} at step {sign.step} ({sign.phase})" for rank, sign in self.signs.items()]
        return f"no sign of life for {self.seconds:.1f} s from {', '.join(each)}"


@dataclass
class Watchdog:
    """Looks at the signs of all processes; says which hang.

    A process hangs when its beats stop for `patience` seconds (it is stopped, or something holds the interpreter), or
    when no process gets anywhere for as long or for three median steps. `slow` bounds the phases that may take long;
    while a process starts, its beats may stop three times as long, since imports hold the interpreter too.
    """

    patience: float
    slow: float = START
    _beats: dict[int, tuple[int, float]] = field(default_factory=dict)  # rank: count, since when
    _moves: dict[int, tuple[int, float]] = field(default_factory=dict)
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=101))

    def look(self, signs: dict[int, Sign], now: float) -> Hang | None:
        """Judge the processes that are alive, by rank."""
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
        stuck = [r for r, s in signs.items() if now - self._moves[r][1] > (self.slow if s.phase in SLOW else limit)]
        if len(stuck) == len(signs) and stuck:
            guilty = [r for r in stuck if signs[r].phase not in WAITING]
            return self._hang(guilty or stuck, self._moves, signs, now)
        return None

    def _hang(
        self, ranks: Sequence[int], since: dict[int, tuple[int, float]], signs: dict[int, Sign], now: float
    ) -> Hang:
        return Hang({rank: signs[rank] for rank in ranks}, now - min(since[rank][1] for rank in ranks))


def _note(seen: dict[int, tuple[int, float]], rank: int, count: int, now: float) -> None:
    if rank not in seen or seen[rank][0] != count:
        seen[rank] = (count, now)
