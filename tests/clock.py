"""A clock for tests of what waits: they take no time, and come out the same on any machine."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Time that passes only while somebody sleeps, in seconds. What is due `at` a moment is done when it has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[float, Callable[[], object]] = {}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [m for m in self.at if m <= self.now]:
            self.at.pop(moment)()
