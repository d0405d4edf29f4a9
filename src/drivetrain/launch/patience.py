"""For how long an engine that does not answer is asked again by someone who follows a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.text import printable

LONGEST = 300.0
"""Seconds without an answer after which the engine's error is the command's."""
PAUSE = 2.0
"""Seconds before the second try; twice as many before each further one."""
LONGEST_PAUSE = 30.0


def tell(text: str) -> None:
    """One line for whoever waits, beside what is asked for."""
    print(f"drivetrain: {printable(text)}", file=sys.stderr, flush=True)


class OutagePatience:
    """Bears with an engine that is away, for a while: each answer begins it anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = tell) -> None:
        self._clock = clock
        self._say = say
        self._since: float | None = None
        self._pause = PAUSE

    def answered(self) -> None:
        """The engine has answered."""
        self._since = None
        self._pause = PAUSE

    def bear(self, failure: Failure) -> float:
        """Seconds after which it is asked again. Raises the failure where it is no 69, and after `LONGEST` seconds."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        left = self._since + LONGEST - now
        if failure.outcome.code is not Exit.PEER_UNAVAILABLE or left <= 0:
            raise failure
        pause = min(self._pause, left)
        self._say(f"{failure.outcome.cause}; asking again in {pause:.0f} s, for {left:.0f} s more")
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        return pause


def followed(
    ended: Callable[[], bool] | None,
    lines: Callable[[], Iterable[str]],
    every: float,
    patience: OutagePatience | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Lines as they come, until the job has ended, or with None those that are there now; `lines` gives those since it
    was last asked, also after a failure.

    There are `every` seconds between two looks. Raises what the engine says once `patience` is at its end.
    """
    if ended is None:
        yield from lines()
        return
    patience = patience or OutagePatience()
    while True:
        try:
            # In this order: lines that came before the end are fetched after it was seen.
            last = ended()
            yield from lines()
        except Failure as failure:
            sleep(patience.bear(failure))
            continue
        patience.answered()
        if last:
            return
        sleep(every)
