"""What a loop works with, and what it remembers between steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from drivetrain.checkpoint.commits import Committer
from drivetrain.checkpoint.mirror import Mirror
from drivetrain.data.feed import Feed, Share
from drivetrain.engine.engine import Engine
from drivetrain.engine.recipe import Statistics
from drivetrain.loop.control import Control
from drivetrain.loop.evaluation import ValidationSet
from drivetrain.loop.exchange import Exchange
from drivetrain.loop.finals import Finals
from drivetrain.loop.guard import Guard
from drivetrain.loop.journal import Journal
from drivetrain.loop.observe import Observer
from drivetrain.loop.progress import Timetable
from drivetrain.loop.recipe import Stop
from drivetrain.loop.step import Step
from drivetrain.loop.task import Task
from drivetrain.runtime.group import Group


@dataclass(frozen=True)
class Parts:
    """All that a loop works with; `run.py` wires it.

    `committer` is None on ranks that commit nothing, `mirror` where nothing is copied elsewhere. `facts` are the
    digests that every commit keeps, `coverage` tells how many samples of each source lie before a position; `ahead` is
    in steps, `workers` in processes. `most_steps` is how many steps are made before the run is stopped.
    """

    task: Task
    engine: Engine
    feed: Feed
    validation: list[ValidationSet]
    timetable: Timetable
    guard: Guard
    statistics: Statistics | None
    group: Group
    exchange: Exchange
    journal: Journal
    committer: Committer | None
    mirror: Mirror | None
    facts: dict[str, Any]
    coverage: Callable[[int], dict[str, int]]
    folder: Path
    ahead: int
    workers: int
    stop: Stop
    most_steps: int | None
    finals: Finals
    observer: Observer
    control: Control


class Entry(NamedTuple):
    """A step whose numbers may still be on their way. `time` is Unix time, `wait` and `seconds` are durations."""

    step: Step
    share: Share
    samples: int
    counts: dict[str, int]
    rates: dict[str, float]
    time: float
    wait: float
    seconds: float


class Pending(NamedTuple):
    """A commit under way: for which step and position, how long training stood still for it, and for the one before
    it, and what it holds, in bytes by kind."""

    step: int
    position: int
    seconds: float
    waited: float
    held: dict[str, int]
