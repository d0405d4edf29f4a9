"""What addresses may ask, checked before anything is looked up by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from drivetrain.board.row import finite
from drivetrain.board.steps import AXES
from drivetrain.spec.exits import Exit, Failure

LONGEST = 512
"""Characters of a text in an address."""


def answer(value: Any, status: int = 200) -> JSONResponse:
    """JSON data; numbers that are not finite are null."""
    return JSONResponse(finite(value), status)


def number(request: Request, name: str, default: float) -> float:
    """A finite number. Raises Failure(64)."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Failure(Exit.BAD_COMMAND, f"{name}={text[:40]!r} is no number", "leave it out")
    return value


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number, brought between two bounds. Raises Failure(64)."""
    return int(min(most, max(least, number(request, name, default))))


def axis(request: Request) -> int:
    """The place of the axis that `by` names. Raises Failure(64)."""
    name = request.query_params.get("by", AXES[0])
    if name not in AXES:
        raise Failure(Exit.BAD_COMMAND, f"there is no axis {name[:40]!r}", f"there are {', '.join(AXES)}")
    return AXES.index(name)


def texts(request: Request, name: str, most: int) -> list[str]:
    """What is given under a name, so many at most. Raises Failure(64)."""
    found = request.query_params.getlist(name)
    if len(found) > most or any(len(text) > LONGEST for text in found):
        raise Failure(Exit.BAD_COMMAND, f"{name} is given too often, or too long", f"at most {most} of {LONGEST}")
    return found


async def body(request: Request) -> Mapping[str, Any]:
    """The JSON object that was sent. Raises Failure(64)."""
    try:
        told = await request.json()
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise Failure(Exit.BAD_COMMAND, "what was sent is no JSON object", "see the page that sent it")
    return told
