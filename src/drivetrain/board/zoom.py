"""What is drawn of the steps between two places: some hundred points, in which no spike is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drivetrain.board.columns import drawable
from drivetrain.board.groups import Groups, Reader, Stretch
from drivetrain.board.steps import TIME, Numbers

DEEP = 8000
"""Steps up to which lines are read: some milliseconds."""
VOID, OPENS = 1, 2
"""Flags of a curve's points: made again or rolled back later; not the next one after the point before it."""


@dataclass(frozen=True)
class Curve:
    """What is drawn of one name, [points] each. `exact`: each point is a step, and low, high and mean are its value."""

    x: Numbers
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    flags: NDArray[np.uint8]
    exact: bool


@dataclass(frozen=True)
class _Points:
    """Of all names alike: where points are, how many steps each stands for, and their flags; `parts` are places of the
    points at which a stretch begins, and how many of them there are."""

    x: Numbers
    rows: Numbers
    flags: NDArray[np.uint8]
    parts: Sequence[tuple[int, int]]

    def starts(self, wide: int) -> NDArray[np.int64]:
        """Where so many points are taken together: never of two stretches."""
        return np.concatenate([np.arange(begin, begin + count, wide) for begin, count in self.parts])


@dataclass(frozen=True)
class Window:
    """What part of the curves is asked for: between two places of an axis, in about so many points."""

    axis: int
    lo: float = -np.inf
    hi: float = np.inf
    points: int = 1000


def curves(groups: Groups, names: Sequence[str], window: Window, read: Reader) -> dict[str, Curve]:
    """What is drawn of each name, in at most as many points more as there are stretches."""
    parts = list(_selected(groups, window))
    if not parts:
        return {name: nothing() for name in names}
    rows = sum(int(groups.spans.rows[part.begin : part.end, 2].sum()) for part in parts)
    if rows <= DEEP:
        return _deep(groups, names, window, parts, read)
    told = _points(groups, window.axis, parts)
    wide = _wide(len(told.x), window.points)
    found = {}
    for name in names:
        column = groups.series[name].rows
        found[name] = _reduced(told, np.concatenate([column[part.begin : part.end] for part in parts]), wide)
    return found


def _deep(
    groups: Groups, names: Sequence[str], window: Window, parts: Sequence[Stretch], read: Reader
) -> dict[str, Curve]:
    steps = [groups.read(part.begin, part.end, read) for part in parts]
    x, rows, flags, places, begin = [], [], [], [], 0
    for part, made in zip(parts, steps, strict=True):
        x.append(made.axes[:, window.axis])
        rows.append(np.ones(len(made)))
        flags.append(_flags(part, len(made)))
        places.append((begin, len(made)))
        begin += len(made)
    told = _Points(np.concatenate(x), np.concatenate(rows), np.concatenate(flags), places)
    wide = _wide(len(told.x), window.points)
    found = {}
    for name in names:
        values = np.concatenate([made.of(name) for made in steps])
        values[~drawable(values)] = np.nan
        found[name] = _reduced(told, np.stack([values, values, values], axis=1), wide, exact=wide == 1)
    return found


def _points(groups: Groups, axis: int, parts: Sequence[Stretch]) -> _Points:
    x = np.concatenate([groups.first.rows[part.begin : part.end, axis] for part in parts])
    rows = np.concatenate([groups.spans.rows[part.begin : part.end, 2] for part in parts])
    flags = np.concatenate([_flags(part, part.end - part.begin) for part in parts])
    places, begin = [], 0
    for part in parts:
        places.append((begin, part.end - part.begin))
        begin += part.end - part.begin
    return _Points(x, rows.astype("f8"), flags, places)


def _selected(groups: Groups, window: Window) -> Iterator[Stretch]:
    """The parts of stretches between two places, with a group more on both sides: lines go on beyond the edge."""
    for stretch in groups.stretches:
        rows = slice(stretch.begin, stretch.end)
        first, last = groups.first.rows[rows, window.axis], groups.last.rows[rows, window.axis]
        if window.axis == TIME:
            # A clock may have been set back: what comes later is then found where the latest time before it is.
            first, last = np.maximum.accumulate(first), np.maximum.accumulate(last)
        begin = int(np.searchsorted(last, window.lo, "left"))
        end = int(np.searchsorted(first, window.hi, "right"))
        if begin < end:
            begin, end = max(0, begin - 1), min(len(first), end + 1)
            yield Stretch(stretch.begin + begin, stretch.begin + end, stretch.void, stretch.opens or begin > 0)


def _reduced(told: _Points, column: NDArray[np.floating], wide: int, *, exact: bool = False) -> Curve:
    """`column` is [points, 3]: least, largest, mean. Points without a value are left out."""
    x, flags, low, high, mean = told.x, told.flags, column[:, 0], column[:, 1], column[:, 2]
    if wide > 1:
        starts = told.starts(wide)
        weight = np.where(np.isfinite(mean), told.rows, 0.0)
        total = np.add.reduceat(weight * np.nan_to_num(mean), starts)
        count = np.add.reduceat(weight, starts)
        mean = np.divide(total, count, out=np.full(len(starts), np.nan), where=count > 0)
        low, high = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
        x, flags = x[starts], flags[starts]
    there = np.isfinite(mean)
    if not there.all():
        flags = _opened_late(flags, there)
        x, low, high, mean, flags = x[there], low[there], high[there], mean[there], flags[there]
    return Curve(x, low.astype("f4"), high.astype("f4"), mean.astype("f4"), flags, exact)


def _opened_late(flags: NDArray[np.uint8], there: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Where the first point of a stretch has no value, the next one that has opens it."""
    stretch = np.cumsum(flags & OPENS != 0)
    flags = (flags & VOID).astype("u1")
    held = np.flatnonzero(there)
    opens = np.flatnonzero(np.diff(stretch[held], prepend=0))
    flags[held[opens]] |= OPENS
    return flags


def _flags(part: Stretch, count: int) -> NDArray[np.uint8]:
    flags = np.full(count, VOID * part.void, "u1")
    flags[0] |= np.uint8(OPENS * part.opens)
    return flags


def _wide(count: int, points: int) -> int:
    """How many points are taken together."""
    return -(-count // points)


def nothing() -> Curve:
    """A curve without points."""
    empty = np.empty(0, "f4")
    return Curve(np.empty(0), empty, empty, empty, np.empty(0, "u1"), True)
