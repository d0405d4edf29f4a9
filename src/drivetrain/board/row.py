"""A run in one line: what the table of runs shows, and the head of a run's page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from drivetrain.board.answers import Best, OwnLine, State
from drivetrain.board.index import Index
from drivetrain.board.lookup import last, newest, seconds
from drivetrain.board.runs import Run
from drivetrain.board.steps import SAMPLES, SECONDS, STEP, TIME, TOKENS, Steps
from drivetrain.board.zoom import VOID, Window
from drivetrain.ledger.records import CommitRecord
from drivetrain.spec.exits import Exit
from drivetrain.watch.report import with_first_cause

SPARK = 60
"""Points of the small curve."""
_RECENT = 8  # groups of steps that rates are taken over
_AXES = ("replicate", "shard", "tensor", "context", "pipeline")


def row(run: Run) -> OwnLine:
    """The line of a run, as JSON data with None for what is not finite. It is kept until something of it changes."""
    index = run.index
    with index.lock:
        key = (index.records, index.size, index.damage, run.alive, run.gone, _stamp(run.folder / "exit.json"))
        if run.cache.get("of") != key:
            run.cache = {"of": key, "told": finite(_made(run))}
        return run.cache["told"]


def _made(run: Run) -> dict[str, Any]:
    state, code, cause = state_of(run)
    told = _of_ledger(run)
    left, rest = None, told.pop("seconds_a_step")
    if state in ("trains", "paused") and rest and told["steps"] > told["step"]:
        left = rest * (told["steps"] - told["step"])
    head = {"id": run.id, "name": run.folder.name, "folder": str(run.folder), "mesh": mesh(run), "read": run.index.read}
    return head | {"state": state, "code": code, "cause": cause, "left": left} | told


def _stamp(path: Path) -> int:
    """When a file was changed last, in ns; 0 where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def state_of(run: Run) -> tuple[State, int | None, str]:
    """What a run is at, the code that it ended with, and why."""
    index = run.index
    if run.gone:
        return "gone", None, "the run directory was removed"
    if run.alive:
        if not index.tallies:
            return "starts", None, ""
        return ("paused" if index.paused else "trains"), None, index.damage
    if index.damage:
        return "damaged", int(Exit.STORAGE), index.damage
    told = with_first_cause(run.folder, [tally.told() for tally in index.tallies])
    if not told:
        return "cut off", None, "it has not begun to train"
    code, cause = told[-1].code, told[-1].cause
    if code is None:
        return "cut off", None, cause
    if code == Exit.DONE:
        return "done", code, cause
    if code == Exit.STOPPED:
        return "stopped", code, cause
    return ("crash loop" if cause.startswith("crash loop") else "failed"), code, cause


def mesh(run: Run) -> dict[str, int]:
    """Processes along each axis that has several, as the recipe asks for them."""
    parallel = run.recipe.tree.get("parallel") or {}
    return {axis: parallel[axis] for axis in _AXES if isinstance(parallel.get(axis), int) and parallel[axis] > 1}


def best(run: Run) -> Best | None:
    """The best value of the metric that the recipe names; the newest of the first one where it names none."""
    index = run.index
    metric, mode = goal(run.recipe.tree)
    if mode is None:
        metric = min((name for name in index.others.points if is_score(name)), default="")
    if metric not in index.others.points:
        return None
    values, rows = index.others.live(metric)
    there = np.isfinite(values)
    if not there.any():
        return None
    values, steps = values[there], rows[there, STEP]
    place = {"min": np.argmin, "max": np.argmax}[mode](values) if mode else len(values) - 1
    return {"metric": metric, "value": float(values[place]), "step": int(steps[place]), "mode": mode}


def goal(recipe: Mapping[str, Any]) -> tuple[str, Literal["min", "max"] | None]:
    """The metric that a recipe calls good, and whether `min` or `max`; None where it names none."""
    for part in ((recipe.get("checkpoint") or {}).get("keep_best"), (recipe.get("stop") or {}).get("patience")):
        if isinstance(part, Mapping):
            return part.get("metric", ""), part.get("mode", "min")
    return "", None


def finite(value: Any) -> Any:
    """JSON data with None for floats that are not finite, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return value


_NO_SCORES = frozenset({"memory", "phase", "counted", "ranks", "statistics", "training", "training_mean"})


def is_score(name: str) -> bool:
    """Whether this series of other records is a metric of an evaluation."""
    return name.partition("/")[0] not in _NO_SCORES


def _of_ledger(run: Run) -> dict[str, Any]:
    """What only changes with the ledger."""
    index, at = run.index, run.index.groups.newest
    told: dict[str, Any] = {
        "records": index.records,
        "step": int(at[STEP]),
        "samples": int(at[SAMPLES]),
        "tokens": int(at[TOKENS]),
    }
    losses = {}
    for name in index.groups.series:
        if name.startswith("train/"):
            losses[name.removeprefix("train/")] = last(index, name)
    spent = seconds(index)
    whole = sum(spent.values())
    told |= {"losses": losses, "spark": _spark(index, losses), "best": best(run)}
    told["goodput"] = spent["step"] / whole if whole else None
    return told | _attempts(index) | _commits(index) | _rates(index)


def _attempts(index: Index) -> dict[str, Any]:
    if not index.tallies:
        return {"attempts": 0, "world": 0, "steps": 0, "started": None, "last": None}
    newest_attempt = index.tallies[-1]
    return {
        "attempts": len(index.tallies),
        "world": newest_attempt.first.world,
        "steps": newest_attempt.first.budget.steps,
        "started": index.tallies[0].first.started,
        "last": newest_attempt.ended,
    }


def _commits(index: Index) -> dict[str, Any]:
    size = None
    # Only this and the small curve are read from the file, which may be gone meanwhile: the rest is told all the same.
    with suppress(OSError):
        record = newest(index, CommitRecord.kind)
        size = record.bytes if isinstance(record, CommitRecord) else None
    return {"commits": index.others.counts().get(CommitRecord.kind, 0), "commit_bytes": size}


def _spark(index: Index, losses: Mapping[str, float]) -> list[float]:
    if not losses:
        return []
    name = f"train/{next(iter(losses))}"
    with suppress(OSError):
        told = index.curves([name], Window(STEP, points=SPARK))[name]
        return [float(value) for value in told.mean[told.flags & VOID == 0]]
    return []


def _rates_of(steps: Steps) -> Iterator[tuple[str, float]]:
    """Rates and MFU of some steps together: a step that takes long counts for as long as it takes."""
    seconds = steps.spent[:, 0] + steps.spent[:, 1]
    for name, column in steps.values.items():
        there = np.isfinite(column)
        if there.any() and (name.endswith("_per_second/all") or name == "mfu/all"):
            yield name, float(np.sum(column[there] * seconds[there]) / np.sum(seconds[there]))


def _rates(index: Index) -> dict[str, Any]:
    """Rates and wall-clock seconds a step of the newest groups of the last stretch."""
    groups = index.groups
    found: dict[str, Any] = {"rates": {}, "mfu": None, "seconds_a_step": None}
    stretch = groups.stretches[-1] if groups.stretches else None
    if stretch is None or stretch.begin == stretch.end:
        return found
    begin = max(stretch.begin, stretch.end - _RECENT)
    with suppress(OSError):
        for name, value in _rates_of(groups.read(begin, stretch.end, index.reader)):
            unit, _, rest = name.partition("_per_second/")
            if rest:
                found["rates"][unit] = value
            else:
                found["mfu"] = value
    made = groups.last.rows[stretch.end - 1] - groups.first.rows[begin]
    if made[STEP] > 0:
        # Of wall-clock time: evaluations and commits between the steps take their part of what is left, too.
        found["seconds_a_step"] = float(max(made[TIME], made[SECONDS]) / made[STEP])
    return found
