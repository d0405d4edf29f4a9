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
from drivetrain.board.index import SKIP, Index
from drivetrain.board.others import KIND, OFFSET, VOIDED
from drivetrain.board.routes.queries import answer, axis, number, texts, whole
from drivetrain.board.steps import AXES
from drivetrain.board.zoom import Curve
from drivetrain.ledger import records
from drivetrain.ledger.records import Record
from drivetrain.spec.exits import Exit, Failure

MOST = 2000
"""Points of a curve."""
_NAMES = 64
_MARKS = 2000  # the newest of each kind
_KINDS = ("attempt", "commit", "evaluation", SKIP, "spike", "rollback", "command", "miss", "note", "exit")


def curves(request: Request) -> Response:
    """GET /api/runs/{id}/curves"""
    run, names = run_of(request), texts(request, "n", _NAMES)
    by, points = axis(request), whole(request, "points", 1000, 10, MOST)
    lo, hi = number(request, "lo", -np.inf), number(request, "hi", np.inf)
    with run.index.lock:
        try:
            found = run.index.curves(names, by, lo, hi, points)
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
    index = run_of(request).index
    with index.lock:
        rows = index.others.rows
        found, left_out = [], 0
        for kind in _KINDS:
            if kind in index.others.kinds:
                places = np.flatnonzero(rows[:, KIND] == index.others.kinds.index(kind))
                left_out += max(0, len(places) - _MARKS)
                found += [_mark(index, kind, int(place)) for place in places[-_MARKS:]]
    found.sort(key=lambda mark: mark["offset"])
    return answer({"marks": found, "left_out": left_out})


def _mark(index: Index, kind: str, place: int) -> dict[str, Any]:
    row = index.others.rows[place]
    offset = int(row[OFFSET])
    told = {name: float(row[column]) for column, name in enumerate(AXES)}
    text = _text(index.record(offset))
    return {"kind": kind, **told, "text": text, "void": bool(row[VOIDED] == 1), "offset": offset}


def _text(record: Record) -> str:
    """What a record says in some words."""
    match record:
        case records.AttemptRecord():
            after = f" after: {record.after.get('cause')}" if record.after else ""
            return f"attempt {record.attempt} from step {record.from_step}, {record.world} processes{after}"
        case records.CommitRecord():
            return f"commit {record.name}"
        case records.EvaluationRecord():
            scores = [
                f"{name}/{metric} {value:.5g}"
                for name, told in record.metrics.items()
                for metric, value in told.items()
            ]
            return ", ".join(scores)
        case records.StepRecord():
            left_out = [f"{network}: {why}" for network, why in (record.skipped or {}).items()]
            return f"step {record.step} left out: {', '.join(left_out)}"
        case records.SpikeRecord() | records.NoteRecord():
            return record.text
        case records.RollbackRecord():
            return f"step {record.step} undone, back to {record.to}: {record.why}"
        case records.CommandRecord():
            refused = f" refused: {record.refused}" if record.refused else ""
            return f"{record.verb} {record.argument}{refused}".strip()
        case records.MissRecord():
            return f"commit missed: {record.cause}"
        case records.ExitRecord():
            return f"ended with {record.code}: {record.cause}"
    return record.kind
