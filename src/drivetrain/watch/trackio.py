"""Trackio's database on this machine: a parcel is one transaction, and a row that comes again is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from drivetrain.watch.recipe import Trackio
from drivetrain.watch.tracker_mark import TrackerRow
from drivetrain.watch.trackers import About, require


class TrackioTracker:
    """Writes by Trackio's storage, not by its `log`, which hands rows to a thread and drops what that cannot write."""

    name = "trackio"
    holds = False

    def __init__(self, settings: Trackio) -> None:
        """Raises Failure(78) where the package is missing."""
        require("trackio")
        self.target = settings.project
        self._project = settings.project
        self._about: About | None = None
        self._storage: Any = None

    def open(self, about: About) -> int:
        """Find the storage; rows carry all that is known about the run."""
        self._storage = import_module("trackio.sqlite_storage").SQLiteStorage
        self._about = about
        return 0

    def send(self, rows: Sequence[TrackerRow]) -> None:
        """Write the rows."""
        about = self._about
        assert about is not None
        config = None
        values, steps, times, ids = [], [], [], []
        for row in rows:
            if row.kind == "attempt" and config is None:
                config = {**about.config, "_Created": _date(row.time), "_Group": None}
            own = {_key(name): value for name, value in row.values.items()}
            values.append(own | dict(row.notes))
            steps.append(row.step)
            times.append(_date(row.time))
            # Trackio ignores a row whose id it has: what comes again after a failure counts once.
            ids.append(f"{about.id}-{row.key}")
        self._storage.bulk_log(
            self._project,
            about.name,
            values,
            steps=steps,
            timestamps=times,
            config=config,
            log_ids=ids,
            run_id=about.id,
        )

    def close(self) -> None:
        """Nothing is held back."""


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _key(name: str) -> str:
    """A name that is none of Trackio's own."""
    if name in ("project", "run", "timestamp", "step", "time", "metrics"):
        return f"__{name}"
    return name
