"""The board's application: which address is answered by what, and how failures are said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import PurePosixPath
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from drivetrain.board.board import Board
from drivetrain.board.routes import commands, curves, events, jobs, ledger, pages, runs
from drivetrain.spec.exits import Exit, Failure

_STATUS = {
    Exit.BAD_COMMAND: 400,
    Exit.BAD_DATA: 422,
    Exit.BAD_RECIPE: 422,
    Exit.INPUT_MISSING: 404,
    Exit.PEER_UNAVAILABLE: 503,
    Exit.SECURITY: 403,
    Exit.OWNED_ELSEWHERE: 409,
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def application(board: Board) -> Starlette:
    """What a server runs. Its runs are read while it does."""
    app = Starlette(
        routes=_routes(),
        lifespan=_reading,
        exception_handlers={Failure: _failed, FileNotFoundError: _gone, HTTPException: _refused},
    )
    app.state.board = board
    app.state.pages = _pages()
    return app


def _routes() -> list[Route]:
    one = "/api/runs/{id}"
    return [
        Route("/", page),
        Route("/static/{path:path}", page),
        Route("/api/runs", runs.table),
        Route("/api/keys", runs.keys),
        Route("/api/compare", runs.compare),
        Route(one, runs.one),
        Route(one, runs.say, methods=["PATCH"]),
        Route(one, runs.remove, methods=["DELETE"]),
        Route(f"{one}/curves", curves.curves),
        Route(f"{one}/marks", curves.marks),
        Route(f"{one}/record", ledger.record),
        Route(f"{one}/records", ledger.listed),
        Route(f"{one}/time", pages.time),
        Route(f"{one}/recipe", pages.recipe),
        Route(f"{one}/commits", pages.commits),
        Route(one + "/commits/{commit}", pages.commit, methods=["POST"]),
        Route(f"{one}/data", pages.data),
        Route(f"{one}/samples", pages.samples, methods=["POST"]),
        Route(f"{one}/gallery", pages.gallery),
        Route(f"{one}/file", pages.file),
        Route(f"{one}/logs", pages.logs),
        Route(f"{one}/plan", pages.plan),
        Route(f"{one}/verify", pages.verified),
        Route(f"{one}/verify", pages.verify, methods=["POST"]),
        Route(f"{one}/commands", commands.listed),
        Route(f"{one}/commands", commands.prepare, methods=["POST"]),
        Route(one + "/commands/{command}", commands.give, methods=["PUT"]),
        Route("/api/jobs", jobs.listed),
        Route("/api/jobs/{job:path}/log", jobs.log),
        Route("/api/jobs/{job:path}", jobs.act, methods=["POST"]),
        Route("/api/events", events.events),
    ]


@asynccontextmanager
async def _reading(app: Starlette) -> AsyncIterator[None]:
    board: Board = app.state.board
    loop = asyncio.get_running_loop()

    def changed(ids: set[str]) -> None:
        told = board.counts(ids)
        loop.call_soon_threadsafe(board.news.tell, told)

    await asyncio.to_thread(board.runs.start, changed)
    yield
    await board.children.close()
    await asyncio.to_thread(board.runs.close)


def _pages() -> dict[str, tuple[bytes, str]]:
    """The files of the page by their names: they are looked up, and never found by a path that somebody sends."""
    found, below = {}, [(PurePosixPath(), files("drivetrain.board") / "static")]
    while below:
        path, folder = below.pop()
        for part in folder.iterdir():
            if part.is_dir():
                below.append((path / part.name, part))
            elif kind := _TYPES.get(PurePosixPath(part.name).suffix):
                found[str(path / part.name)] = (part.read_bytes(), kind)
    return found


async def page(request: Request) -> Response:
    """A file of the page."""
    found = request.app.state.pages.get(request.path_params.get("path", "index.html"))
    if found is None:
        raise HTTPException(404, "no such file")
    return Response(found[0], media_type=found[1])


def _failed(request: Request, error: Exception) -> Response:
    told = cast(Failure, error).outcome
    return JSONResponse({"error": told.cause, "hint": told.hint}, _STATUS.get(told.code, 500))


def _gone(request: Request, error: Exception) -> Response:
    told = {"error": "the run's files are not there any more", "hint": "its directory may have been removed"}
    return JSONResponse(told, 404)


def _refused(request: Request, error: Exception) -> Response:
    found = cast(HTTPException, error)
    return JSONResponse({"error": found.detail, "hint": ""}, found.status_code)
