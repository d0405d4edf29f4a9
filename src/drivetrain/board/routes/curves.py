"""Curves, in binary, and the marks beside them."""

from __future__ import annotations

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from drivetrain.board.board import run_of
from drivetrain.board.encoding import encoded
from drivetrain.board.lookup import span
from drivetrain.board.marks import marks as marks_of
from drivetrain.board.routes.queries import answer, axis, number, texts, whole
from drivetrain.board.zoom import Window
from drivetrain.spec.exits import Exit, Failure

MOST = 2000
"""Points of a curve."""
_NAMES = 64


def curves(request: Request) -> Response:
    """GET /api/runs/{id}/curves"""
    run, names = run_of(request), texts(request, "n", _NAMES)
    by, points = axis(request), whole(request, "points", 1000, 10, MOST)
    lo, hi = number(request, "lo", -np.inf), number(request, "hi", np.inf)
    with run.index.lock:
        try:
            found = run.index.curves(names, Window(by, lo, hi, points))
        except KeyError as missing:
            raise Failure(Exit.INPUT_MISSING, f"no curve {missing}", "the run's page lists those there are") from None
        head = {"records": run.index.records, "rows": len(run.index.groups), "span": span(run.index, by)}
    return Response(encoded(found, head), media_type="application/octet-stream")


def marks(request: Request) -> Response:
    """GET /api/runs/{id}/marks"""
    found, left_out = marks_of(run_of(request).index)
    return answer({"marks": found, "left_out": left_out})
