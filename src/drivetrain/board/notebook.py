"""`drivetrain.board(RUN)`: live curves in a cell of a notebook. No server, no script: a picture that is replaced."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.board.lookup import last, series
from drivetrain.board.row import is_score, row
from drivetrain.board.runs import Run, Runs, is_run, run_id
from drivetrain.board.serve import cache_folder
from drivetrain.board.steps import AXES
from drivetrain.board.svg import POINTS, Line, picture
from drivetrain.board.zoom import Window
from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

CHARTS = 8
"""Charts that are drawn where nobody says which."""
_EVERY = 1.0  # seconds between two pictures
_OVER = frozenset({"done", "stopped", "failed", "crash loop", "damaged", "gone"})


def board(*runs: str | Path, curves: str | Sequence[str] | None = None, by: str = "step") -> LiveCurves:
    """Show the curves of runs below this cell, and replace them while they train. The last picture stays in the
    notebook where it is saved. It needs neither a server nor a script.

    `curves` are names as the board shows them (`train/loss`, `SET/METRIC`, `learning_rate/NETWORK`), or one; without
    them losses, scores and learning rates. `by` is step, samples, tokens, seconds or time. It ends by itself when each
    run has ended; one that was cut off may go on, and `stop()` of what it returns ends it before. Raises Failure: 64
    outside of a notebook, for an unknown `by`, and for the same run twice; 66 where one is no run.
    """
    _require_notebook()
    if by not in AXES:
        raise Failure(Exit.BAD_COMMAND, f"there is no axis {by!r}", f"by is one of {', '.join(AXES)}")
    folders = [Path(run).resolve() for run in runs]
    if not folders or len(set(folders)) < len(folders):
        raise Failure(Exit.BAD_COMMAND, "runs are given once each, one or more", "drivetrain.board('runs/NAME')")
    for folder in folders:
        if not is_run(folder):
            raise Failure(Exit.INPUT_MISSING, f"{folder} is no run directory", "name one that has begun")
    return LiveCurves(folders, [curves] if isinstance(curves, str) else curves, by)


class LiveCurves:
    """Curves that are shown, and drawn again by a thread of their own while a run trains."""

    def __init__(self, folders: Sequence[Path], curves: Sequence[str] | None, by: str) -> None:
        self._runs = Runs(folders, cache_folder())
        self._order = folders
        self._curves, self._by = curves, by
        self._ended = threading.Event()
        self._known: dict[str, Run] = {}
        self._lines: dict[str, dict[str, Line]] = {}
        """Of each run as they were read last: a directory may go, and what was shown stays."""
        self._read()
        self._picture = self._drawn()
        self._handle = _shown(self._picture)
        self._thread = threading.Thread(target=self._follow, name="curves", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Draw once more, and follow the runs no further."""
        self._ended.set()
        self.wait()

    def wait(self, seconds: float | None = None) -> bool:
        """Until each run has ended, or so many seconds: whether the last picture is drawn. For a notebook that is
        executed as a whole: what changes after its last cell is not saved."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _ipython_display_(self) -> None:
        """It is shown already: the cell's own value would show it twice."""

    def _follow(self) -> None:
        over = False
        while not over:
            # An end that is asked for now comes before the ledgers are read: the last picture has all of them.
            over = self._ended.wait(_EVERY)
            self._read()
            over = over or all(row(run)["state"] in _OVER for run in self._known.values())
            self._draw()
        self._runs.close()

    def _read(self) -> None:
        self._runs.scan()
        # One that is gone is still known.
        self._known |= self._runs.all
        while self._runs.poll()[1]:
            pass

    def _draw(self) -> None:
        drawn = self._drawn()
        if drawn != self._picture:
            self._picture = drawn
            self._handle.update(_svg(drawn))

    def _drawn(self) -> str:
        found = [self._known[run_id(folder)] for folder in self._order]
        names = self._names(found)
        charts: dict[str, list[Line]] = {name: [] for name in names}
        for place, run in enumerate(found):
            with suppress(OSError):
                self._lines[run.id] = self._lines_of(run, place, names)
            kept = self._lines.get(run.id, {})
            for name in kept.keys() & charts.keys():
                charts[name].append(kept[name])
        return picture(charts, [_head(run) for run in found], self._by)

    def _lines_of(self, run: Run, place: int, names: Sequence[str]) -> dict[str, Line]:
        with run.index.lock:
            there = series(run.index)
            own = [name for name in names if name in there]
            found = run.index.curves(own, Window(AXES.index(self._by), points=POINTS))
            return {name: Line(place, curve, last(run.index, name)) for name, curve in found.items()}

    def _names(self, runs: Sequence[Run]) -> list[str]:
        if self._curves is not None:
            return list(self._curves)
        of_steps = dict.fromkeys(name for run in runs for name in run.index.groups.series)
        losses = [name for name in of_steps if name.startswith("train/")]
        rates = [name for name in of_steps if name.startswith("learning_rate/")]
        others = dict.fromkeys(name for run in runs for name in run.index.others.points)
        return [*losses, *filter(is_score, others), *rates][:CHARTS]


def _head(run: Run) -> str:
    told = row(run)
    at = f"step {told['step']:,} of {told['steps']:,}" if told["steps"] else ""
    cause = told["cause"] if told["cause"] != told["state"] else ""
    parts = [f"{told['name']}: {told['state']}", at, cause]
    return ", ".join(part for part in parts if part)


def _shown(drawn: str) -> DisplayHandle:
    from IPython.display import display

    handle = display(_svg(drawn), display_id=True)
    assert handle is not None  # there is one wherever an id is asked for
    return handle


def _svg(drawn: str) -> Any:
    from IPython.display import SVG

    return SVG(drawn)


def _require_notebook() -> None:
    shell = None
    if find_spec("IPython") is not None:
        from IPython import get_ipython

        shell = get_ipython()
    if shell is None:
        cause = "curves are shown in a cell of a notebook, and this is none"
        raise Failure(Exit.BAD_COMMAND, cause, "`drivetrain board RUN` shows them in a browser")
