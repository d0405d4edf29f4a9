"""Curves, in binary, and the marks beside them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from drivetrain.board.board import run_of
from drivetrain.board.marks import marks as marks_of
from drivetrain.board.routes.queries import answer, axis, number, texts, whole
from drivetrain.board.zoom import Curve, Window
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
        head = {"records": run.index.records, "rows": len(run.index.groups)}
    return Response(encoded(found, head), media_type="application/octet-stream")


def encoded(found: Mapping[str, Curve], head: Mapping[str, Any]) -> bytes:
    """Curves as the page reads them: the length of the head (u32, little endian), the head, and of each curve x (f8),
    low, high, mean (f4) and flags (u1), each filled up to a multiple of eight bytes."""
    told = []
    for name, curve in found.items():
        told.append({"name": name, "length": len(curve.x), "exact": curve.exact})
    line = json.dumps({**head, "curves": told}).encode()
    line += b" " * (-(4 + len(line)) % 8)
    parts = [struct.pack("<I", len(line)), line]
    for curve in found.values():
        for column, kind in ((curve.x, "<f8"), (curve.low, "<f4"), (curve.high, "<f4"), (curve.mean, "<f4")):
            parts.append(_padded(column.astype(kind).tobytes()))
        parts.append(_padded(curve.flags.tobytes()))
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


def marks(request: Request) -> Response:
    """GET /api/runs/{id}/marks"""
    found, left_out = marks_of(run_of(request).index)
    return answer({"marks": found, "left_out": left_out})
