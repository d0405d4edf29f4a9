"""Records of a run's ledger as they stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.board.board import run_of
from drivetrain.board.index import Index
from drivetrain.board.lookup import step_at
from drivetrain.board.routes.queries import answer, axis, number, texts, whole
from drivetrain.board.samples import samples_of
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch.tracker_mark import without_secrets

MOST = 500
"""Records of an answer."""
_LOOKED = 64 << 20  # bytes that one search looks through
_BLOCK = 1 << 20


def record(request: Request) -> Response:
    """GET /api/runs/{id}/record"""
    index = run_of(request).index
    offset: int | None = None
    if "at" in request.query_params:
        offset = step_at(index, axis(request), number(request, "at", 0))
    elif 0 <= (asked := int(number(request, "offset", -1))) < index.offset:
        offset = asked
    line = index.line(offset) if offset is not None else b""
    # An offset that is none leads into the middle of a line.
    if offset is None or not line.startswith(b'{"kind":'):
        raise Failure(Exit.INPUT_MISSING, "no such record", "the ledger's page lists those there are")
    told = {"record": _told(line), "offset": offset}
    return answer(told | {"samples": samples_of(index, offset)})


def listed(request: Request) -> Response:
    """GET /api/runs/{id}/records"""
    index = run_of(request).index
    kinds = texts(request, "kind", 64)
    search = "".join(texts(request, "search", 1)).lower()
    most = whole(request, "limit", 100, 1, MOST)
    before = whole(request, "before", index.offset, 0, index.offset)
    found: list[dict[str, Any]] = []
    wanted = re.compile(b'{"kind":"(%s)"' % b"|".join(re.escape(kind.encode()) for kind in kinds or [".+"]))
    if not kinds:
        wanted = re.compile(b'{"kind":')
    at = before
    for at, line in _backwards(index, before):
        if wanted.match(line) and search.encode() in line.lower():
            found.append({"offset": at, "record": _told(line)})
        if len(found) >= most or before - at > _LOOKED:
            break
    chain = {"whole": not index.damage, "checked": index.records, "damage": index.damage or None}
    return answer({"records": found, "more": at > 0, "before": at, "chain": chain})


def _told(line: bytes) -> Any:
    """The record of a line as JSON data, without secrets. Raises Failure(66) where it was cut meanwhile."""
    try:
        return without_secrets(json.loads(line))
    except ValueError:
        raise Failure(Exit.INPUT_MISSING, "the ledger was changed meanwhile", "ask again") from None


def _backwards(index: Index, before: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines before this place, the last one first, each with where it begins."""
    rest, end = b"", before
    if not end:  # it starts: there may be no file yet
        return
    with index.ledger.open("rb") as file:
        while end:
            begin = max(0, end - _BLOCK)
            file.seek(begin)
            block = file.read(end - begin) + rest
            lines = block.splitlines(keepends=True)
            # The first one may have begun before this block.
            rest = lines.pop(0) if begin else b""
            at = begin + len(block)
            for line in reversed(lines):
                at -= len(line)
                yield at, line
            end = begin
