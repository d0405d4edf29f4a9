"""Stop requests: a signal sets a flag, and the loop acts at its next boundary."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from drivetrain.spec.exits import Exit


class StopRequests:
    """While entered, SIGTERM and SIGINT set `requested`; the third one ends the process at once.

    Outside the main thread, where Python cannot install handlers, nothing is installed.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._count = 0
        self._previous: dict[int, signal.Handlers | None] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._ask)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        self.requested = signal.Signals(number).name
        if self._count >= 3:
            os._exit(Exit.STOPPED)
