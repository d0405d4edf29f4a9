"""What holds for one attempt on one rank, from its first moment on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.launch.job import Job
from drivetrain.loop.ledger_writer import Stopwatch
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.place import Place
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.code.scan import UserCode
from drivetrain.spec.load import Resolved
from drivetrain.spec.recipe import Recipe


class StartupTimes:
    """How many seconds each part of a start has taken, counted from when the job was started elsewhere."""

    def __init__(self, started: float) -> None:
        """`started` is Unix time."""
        self.watch = Stopwatch(time.monotonic() - (time.time() - started))
        self.seconds: dict[str, float] = {}
        self.resident = 0  # bytes of this process in memory before it has networks

    def lap(self, name: str) -> None:
        """This part ends here, and the next one begins."""
        self.seconds[name] = self.watch.lap()


@dataclass(frozen=True)
class AttemptContext:
    """One start of a run, on one rank: what it was asked, and where and by what it runs.

    `resolved` is the job's recipe, checked; `code` is the user's own that it names, and `environment` what bits depend
    on beside both. `loaded_before` are the modules that this process had when the attempt began.
    """

    job: Job
    resolved: Resolved
    place: Place
    stops: StopRequests
    heartbeat: Heartbeat
    environment: Mapping[str, Any]
    code: UserCode
    loaded_before: frozenset[str]
    startup: StartupTimes

    @property
    def recipe(self) -> Recipe:
        """The run's recipe, without what was set while it trained."""
        return self.resolved.recipe

    @property
    def folder(self) -> Path:
        """The run directory."""
        return Path(self.job.folder)
