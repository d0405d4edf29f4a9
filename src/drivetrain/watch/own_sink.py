"""A sink of the user's own, as a tracker: it gets each row of the ledger once, and again after an outage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from drivetrain.spec.custom import Custom, build_custom
from drivetrain.watch.tracker_mark import TrackerRow
from drivetrain.watch.trackers import About


class OwnSink:
    """A class with `send(rows)`; `open(about)`, which may return the number of the last row that it has, and `close()`
    by choice. It is built by its own thread, when there is a first row."""

    holds = False

    def __init__(self, custom: Custom, place: int) -> None:
        """`place` is that in the recipe: one class may be there twice."""
        self.name = f"{custom.kind.replace(':', '.')}-{place}"
        self.target = json.dumps(custom.settings, sort_keys=True)
        self._custom = custom
        self._built: Any = None

    def open(self, about: About) -> int:
        """Build it; 0 where it does not say what it has."""
        self._built = build_custom(self._custom)
        if not hasattr(self._built, "open"):
            return 0
        return self._built.open(about) or 0

    def send(self, rows: Sequence[TrackerRow]) -> None:
        """Its `send`."""
        self._built.send(rows)

    def close(self) -> None:
        """Its `close`, where it has one."""
        if hasattr(self._built, "close"):
            self._built.close()
