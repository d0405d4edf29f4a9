"""News of runs, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from drivetrain.board.board import board_of


async def events(request: Request) -> Response:
    """GET /api/events"""
    news = board_of(request).news

    async def lines() -> AsyncIterator[str]:
        yield "retry: 500\n\n"
        async for told in news.follow():
            yield ": alive\n\n" if told is None else f"event: runs\ndata: {json.dumps(told)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
