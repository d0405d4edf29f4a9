"""Stop requests: a signal is counted, and whoever runs acts at its next boundary."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from drivetrain.spec.exits import Exit, Failure

_TICK = 0.1  # seconds between two looks at the count


def stopping() -> list[signal.Signals]:
    """The signals that ask for a stop: SIGTERM, SIGINT, and a closed terminal's SIGHUP unless nohup had it ignored."""
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    return wanted


def end_at_once() -> None:
    """End this process without another word: not with 75, which says that all is committed."""
    os._exit(Exit.INTERNAL)


class StopRequests:
    """While entered, signals that ask for a stop are counted: the first asks, the third wants the end at once.

    Outside the main thread, where Python cannot install handlers, nothing is installed.
    """

    def __init__(
        self, signals: Sequence[signal.Signals] | None = None, at_third: Callable[[], None] | None = end_at_once
    ) -> None:
        """`signals` are those of `stopping` if None. `at_third` is called within the handler of the third one; None
        where `urgent` is asked."""
        self.requested: str | None = None
        """Why a stop is wanted: the last signal's name, or what else its user says."""
        self.count = 0
        self.last: int = signal.SIGTERM
        self._signals = signals
        self._at_third = at_third
        self._taken = 0  # of the count: those that were passed on
        self._previous: dict[int, signal.Handlers | None] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            signals = self._signals
            if signals is None:
                signals = stopping()
            for number in signals:
                self._previous[number] = signal.signal(number, self._add)  # type: ignore[assignment]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # what came while the process started comes now
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def urgent(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.count >= 3

    def take(self) -> bool:
        """Whether there is a request since the last `take`: who passes signals on asks so."""
        # The count is read once: another signal may come between two reads, and would be lost.
        count = self.count
        fresh, self._taken = count > self._taken, count
        return fresh

    def repeat(self) -> None:
        """What was taken could not be passed on: the next `take` gives it again."""
        self._taken = min(self._taken, self.count - 1)

    def pause(self, seconds: float) -> None:
        """Sleep, unless a stop is asked for."""
        end = time.monotonic() + seconds
        while not self.count and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _TICK))

    def sleep(self, seconds: float) -> None:
        """Sleep before anything is started; Failure(75) where a stop is asked for."""
        time.sleep(seconds)
        if self.count:
            raise Failure(Exit.STOPPED, "stopped before anything was started", "the same command starts it")

    def _add(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.last = number
        self.requested = signal.Signals(number).name
        if self.urgent and self._at_third:
            self._at_third()
