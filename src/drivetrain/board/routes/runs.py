"""The table of runs, and one run as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from drivetrain.board.board import board_of, run_of
from drivetrain.board.index import KIND, Index
from drivetrain.board.routes.queries import answer
from drivetrain.board.row import row
from drivetrain.board.runs import Run
from drivetrain.board.steps import AXES, TOKENS


def table(request: Request) -> Response:
    """GET /api/runs"""
    board = board_of(request)
    rows = board.rows()
    folders = [str(folder) for folder in board.runs.folders]
    return answer({"runs": rows, "read_only": board.read_only, "folders": folders, "problem": None})


def one(request: Request) -> Response:
    """GET /api/runs/{id}"""
    run = run_of(request)
    with run.index.lock:
        return answer({**row(run), **_detail(run)})


def _detail(run: Run) -> dict[str, Any]:
    index = run.index
    axes = [name for name in AXES if name != "tokens" or index.groups.newest[TOKENS] > 0]
    return {
        "series": _series(index),
        "kinds": kinds(index),
        "attempts_made": [_attempt(index, number) for number in range(len(index.tallies))],
        "seconds": index.seconds,
        "parameters": index.tallies[-1].first.parameters if index.tallies else {},
        "axes": axes,
    }


def _series(index: Index) -> list[dict[str, Any]]:
    found = []
    for name, rows in index.series.items():
        found.append({"name": name, "rows": rows, "last": index.last(name), "dense": name in index.groups.series})
    return found


def kinds(index: Index) -> dict[str, int]:
    """How many records of each kind there are."""
    counts = np.bincount(index.others.rows[:, KIND].astype(int), minlength=len(index.kinds))
    found = dict(zip(index.kinds, map(int, counts), strict=True))
    steps = index.records - sum(count for kind, count in found.items() if kind != "skip")
    return {"step": steps} | found


def _attempt(index: Index, number: int) -> dict[str, Any]:
    tally = index.tallies[number]
    first = tally.first
    return {
        **vars(tally.told()),
        "host": first.host,
        "device": first.device,
        "seconds": dict(tally.seconds),
        "after": first.after,
        "claim": first.claim.to_json(),
    }
