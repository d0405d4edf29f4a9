"""What looks on while a run trains, and decides none of its bits: telemetry, garbage collection, the profiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from drivetrain.engine.engine import Engine
from drivetrain.ledger.records import NoteRecord
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.profile import Window
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Profile
from drivetrain.loop.state import RunState
from drivetrain.loop.telemetry import Meter
from drivetrain.runtime.group import Group
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe


class Observer:
    """Called by the loop before and after each step, and entered around it."""

    def __init__(
        self,
        meter: Meter,
        settings: Profile | None,
        open_window: Callable[[Profile], Window],
        ledger: LedgerWriter,
        group: Group,
        heartbeat: Heartbeat,
    ) -> None:
        """`settings` are of the recipe's profile, `open_window` makes what watches one."""
        self._meter = meter
        self._open = open_window
        self._window: Window | None = None
        if settings:
            self._window = open_window(settings)
        self._ledger = ledger
        self._group = group
        self._heartbeat = heartbeat

    @contextmanager
    def watching(self, state: RunState) -> Iterator[None]:
        """While entered, the loop runs. Where it ends as it should it does so on all ranks alike, and what was seen
        since the last record is told; nothing of this stays behind in the process, whatever the end."""
        self._meter.begin(state.progress.step)
        try:
            yield
            if self._window is not None:
                self._written(lambda window: window.close(state.progress.step))
            self._meter.end(state.progress)
        finally:
            self._meter.restore()
            if self._window is not None:
                self._window.drop()

    def require_free(self, start: int) -> None:
        """Raises Failure(64) where another profile is still to come, or under way, from this step on."""
        if self._window is not None and self._window.steps[-1] >= start:
            last = self._window.steps[-1]
            raise Failure(Exit.BAD_COMMAND, f"steps up to {last} are to be profiled already", "ask again after them")

    def profile(self, start: int, steps: int) -> None:
        """Profile so many steps from this one on."""
        self._window = self._open(Profile(start=start, steps=steps))

    def before(self, step: int) -> None:
        """A step begins."""
        if self._window is not None:
            self._window.before(step)

    def after(self, now: Progress) -> None:
        """A step is made."""
        self._meter.after(now)
        if self._window is not None and now.step in self._window.steps:
            self._written(lambda window: window.after(now.step))

    def back(self, step: int) -> None:
        """The steps after this one are undone, and will be made again."""
        self._meter.back(step)

    def _written(self, write: Callable[[Window], str]) -> None:
        """Have the profile written and noted; a full disk is told, and does not end the run."""
        assert self._window is not None
        self._heartbeat.enter("profile")
        try:
            text = write(self._window)
        except OSError as error:
            text = f"the profile cannot be written: {error}"
            print(f"drivetrain: {text}", file=sys.stderr)
        if text:
            self._group.barrier()  # a large one takes long: the others wait here, where that is known to be no hang
        self._ledger.lap("profile")
        if text:
            self._ledger.record(NoteRecord(text=text))


def build_observer(
    recipe: Recipe, meter: Meter, group: Group, engine: Engine, ledger: LedgerWriter, run: Path
) -> Observer:
    """As a recipe wants it."""
    open_window = partial(Window, rank=group.rank, device=engine.device, run=run)
    return Observer(meter, recipe.profile, open_window, ledger, group, engine.heartbeat)
