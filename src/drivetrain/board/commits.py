"""The commits of a run as its ledger tells of them: which are there, pinned, the best, and what each follows from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from drivetrain.board.answers import CommitListed
from drivetrain.board.files import names_in
from drivetrain.board.row import goal
from drivetrain.board.runs import Run
from drivetrain.board.steps import STEP
from drivetrain.board.timeline import of_kind
from drivetrain.checkpoint.manifest import FOLDER, MANIFEST, step_of
from drivetrain.checkpoint.retention import PINS
from drivetrain.ledger.records import CommitRecord


def commits(run: Run) -> list[CommitListed]:
    """Those that count, newest first. `parent` is the commit that training went on from to this one, `score` what the
    recipe's own metric came to at its step, `best` whether no other that is there has a better one."""
    here, pinned = names_in(run.folder / FOLDER), names_in(run.folder / PINS)
    scores, found, before = _scores(run), {}, None
    # A step that is made again is committed under the name that it had.
    for record in of_kind(run.index, CommitRecord):
        row = {"name": record.name, "step": record.step, "time": record.time, "bytes": record.bytes, "parent": before}
        row |= {"here": record.name in here, "pinned": record.name in pinned, "score": scores.get(record.step)}
        found[record.name] = row
        before = record.name
    for name in here - found.keys():
        with suppress(FileNotFoundError):  # it is rotated away meanwhile
            found |= _untold(run.folder / FOLDER / name, pinned)
    best = _best(run, found)
    for name, row in found.items():
        row["best"] = name == best
    return sorted(found.values(), key=lambda row: -row["step"])


def _untold(commit: Path, pinned: Set[str]) -> dict[str, Any]:
    """By its name, a commit whose record the run did not live to write; empty for anything else that lies there."""
    step = step_of(commit.name)
    if step is None or not (commit / MANIFEST).is_file():
        return {}
    row = {"name": commit.name, "step": step, "time": commit.stat().st_mtime, "bytes": None, "parent": None}
    return {commit.name: row | {"here": True, "pinned": commit.name in pinned, "score": None}}


def _best(run: Run, found: Mapping[str, Mapping[str, Any]]) -> str | None:
    scored = {name: row["score"] for name, row in found.items() if row["here"] and row["score"] is not None}
    if not scored:
        return None
    choose = max if goal(run.recipe.tree)[1] == "max" else min
    return choose(scored, key=lambda name: scored[name])


def _scores(run: Run) -> dict[int, float]:
    """By step, of the metric that the recipe calls good; empty where it names none."""
    metric, _ = goal(run.recipe.tree)
    if metric not in run.index.others.points:
        return {}
    with run.index.lock:
        values, rows = run.index.others.live(metric)
        return dict(_numbers(zip(rows[:, STEP].tolist(), values.tolist(), strict=True)))


def _numbers(scored: Iterator[tuple[float, float]]) -> Iterator[tuple[int, float]]:
    for step, value in scored:
        if math.isfinite(value):
            yield int(step), value
