"""Where the host waits for a CUDA device within steps, as torch's own debug mode tells it."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import drivetrain
from drivetrain.loop.observe import Observer

_SOURCES = str(Path(drivetrain.__file__).parent)
_SAYS = "called a synchronizing"
_FIRST = 3
"""The step from which it is looked: in those before libraries and optimizers begin."""


@contextmanager
def waits_of() -> Iterator[Counter[str]]:
    """While entered, runs of this process are watched, from the fetch of a step's batch to its record."""
    found: Counter[str] = Counter()
    before, after, show = Observer.before, Observer.after, warnings.showwarning

    def begin(self: Observer, step: int) -> None:
        before(self, step)
        if step >= _FIRST:
            torch.cuda.set_sync_debug_mode("warn")

    def end(self: Observer, now: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")
        after(self, now)

    def hear(message: Warning | str, *rest: Any, **more: Any) -> None:
        if _SAYS in str(message):
            found[_place()] += 1
        else:
            show(message, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        Observer.before, Observer.after = begin, end
        try:
            yield found
        finally:
            Observer.before, Observer.after = before, after
            torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    """The innermost function of ours that is at work."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_SOURCES):
            return f"{path[len(_SOURCES) + 1 :]}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside"
