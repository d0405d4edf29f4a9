"""Stop requests: a signal sets a flag, and the loop acts at its next boundary."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from drivetrain.spec.exits import Exit


def stopping() -> list[signal.Signals]:
    """The signals that ask for a stop: SIGTERM, SIGINT, and a closed terminal's SIGHUP unless nohup had it ignored."""
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    return [signal.SIGTERM, signal.SIGINT, *hangup]


class StopRequests:
    """While entered, the signals of `stopping` set `requested`; the third one ends the process at once.

    Outside the main thread, where Python cannot install handlers, nothing is installed.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._count = 0
        self._previous: dict[int, signal.Handlers | None] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in stopping():
                self._previous[number] = signal.signal(number, self._ask)  # type: ignore[assignment]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping())  # what came while the process started comes now
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        self.requested = signal.Signals(number).name
        if self._count >= 3:
            os._exit(Exit.INTERNAL)  # not 75, which says that all is committed
