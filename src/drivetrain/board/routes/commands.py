"""Commands to a run."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from drivetrain.board import steering
from drivetrain.board.board import run_of
from drivetrain.board.routes.queries import answer, body
from drivetrain.spec.commands import Command


def listed(request: Request) -> Response:
    """GET /api/runs/{id}/commands"""
    return answer({"commands": steering.told(run_of(request))})


async def prepare(request: Request) -> Response:
    """POST /api/runs/{id}/commands"""
    command = Command.of(await body(request))
    return answer(steering.prepared(run_of(request), command), 201)


async def give(request: Request) -> Response:
    """PUT /api/runs/{id}/commands/{command}"""
    command = Command.of(await body(request))
    return answer(await run_in_threadpool(steering.give, run_of(request), command, request.path_params["command"]))
