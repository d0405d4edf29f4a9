"""Jobs that were submitted from here."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.board.board import board_of
from drivetrain.board.routes.queries import answer, body
from drivetrain.board.runs import run_id
from drivetrain.spec.exits import Exit, Failure

_LINES = 1000  # of a log, the last
_LONGEST = 120.0  # seconds: an engine may answer late


async def listed(request: Request) -> Response:
    """GET /api/jobs"""
    board = board_of(request)
    rows = await board.children.ask("jobs", "--all", seconds=_LONGEST)
    for row in rows:
        id = run_id(Path(row["run"]))
        row["id"] = id if id in board.runs.all else None
    return answer({"jobs": rows, "read_only": board.read_only})


async def log(request: Request) -> Response:
    """GET /api/jobs/{job}/log"""
    job = request.path_params["job"]
    if job.startswith("-"):
        raise Failure(Exit.INPUT_MISSING, f"no job {job[:40]!r}", "the page of jobs lists those there are")
    lines = await board_of(request).children.lines("logs", job, seconds=_LONGEST)
    return answer({"text": "\n".join(line["line"] for line in lines[-_LINES:])})


async def act(request: Request) -> Response:
    """POST /api/jobs/{job}"""
    what, job = (await body(request)).get("act"), request.path_params["job"]
    if what not in ("cancel", "requeue") or job.startswith("-"):
        raise Failure(Exit.BAD_COMMAND, "a job is cancelled or requeued", "nothing else is done to it here")
    return answer(await board_of(request).children.ask(what, job, seconds=_LONGEST))
