"""Runs side by side: keys that differ, and what each had at the same places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drivetrain.board.answers import Different, DifferentOfSeveral, Equal
from drivetrain.board.index import Index
from drivetrain.board.lookup import series
from drivetrain.board.runs import Run
from drivetrain.board.steps import SECONDS, TIME, Numbers
from drivetrain.board.zoom import Window

_PLACES = 8
"""As `drivetrain compare` has."""
_UNTOLD = ("memory/", "phase/", "ranks/", "counted/", "step/")


def differences(runs: Sequence[Run]) -> list[DifferentOfSeveral]:
    """The recipes' keys that not all have alike."""
    found = []
    every = dict.fromkeys(key for run in runs for key in run.recipe.values)
    for key in every:
        values = {run.id: run.recipe.values.get(key) for run in runs}
        if len({repr(value) for value in values.values()}) > 1:
            found.append({"key": key, "values": values})
    return found


def differing(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[Different]:
    """The keys of two recipes that are not alike, with both values."""
    found = []
    for key in dict.fromkeys([*here, *there]):
        if here.get(key) != there.get(key):
            found.append({"key": key, "here": here.get(key), "there": there.get(key)})
    return found


def at_equal(runs: Sequence[Run], axis: int) -> list[Equal]:
    """The numbers of each name that several have, at places up to which all runs came: the newest value that counts
    there. None where a run has none yet."""
    places = _places(runs, axis)
    if not len(places):
        return []
    every = dict.fromkeys(name for run in runs for name in series(run.index))
    names = filter(_told, every)
    found = []
    for name in names:
        columns = [(run.id, _at(run.index, name, axis, places)) for run in runs]
        for number, place in enumerate(places):
            values = {id: column[number] for id, column in columns}
            if sum(value is not None for value in values.values()) > 1:
                found.append({"name": name, "at": float(place), "values": values})
    return found


def _places(runs: Sequence[Run], axis: int) -> Numbers:
    """Places up to which all runs came; none where one has not begun, or had ended before another one began."""
    if not runs or not all(len(run.index.groups) for run in runs):
        return np.empty(0)
    begin = max(float(run.index.groups.first.rows[0, axis]) for run in runs)
    end = min(float(run.index.groups.newest[axis]) for run in runs)
    if begin > end:
        return np.empty(0)
    places = np.linspace(begin if axis == TIME else 0.0, end, _PLACES + 1)[1:]
    if axis not in (TIME, SECONDS):
        places = np.unique(np.floor(places))
    return places[places >= begin]


def _told(name: str) -> bool:
    return not name.startswith(_UNTOLD)


def _at(index: Index, name: str, axis: int, places: Numbers) -> list[float | None]:
    if name not in series(index):
        return [None] * len(places)
    curve = index.curves([name], Window(axis, points=2000))[name]
    live = curve.flags & 1 == 0
    x, mean = curve.x[live], curve.mean[live]
    order = np.argsort(x, kind="stable")
    x, mean = x[order], mean[order]
    rows = np.searchsorted(x, places, "right") - 1
    found: list[float | None] = []
    for row in rows:
        found.append(float(mean[row]) if row >= 0 else None)
    return found
