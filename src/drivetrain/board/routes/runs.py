"""The table of runs, and one run as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drivetrain.board.answers import Line
from drivetrain.board.board import board_of, run_of
from drivetrain.board.comparing import at_equal, differences
from drivetrain.board.detail import detail
from drivetrain.board.filtering import Filter, parse
from drivetrain.board.lookup import last, series
from drivetrain.board.removal import empty, trash
from drivetrain.board.routes.queries import answer, axis, body, texts
from drivetrain.board.row import finite
from drivetrain.board.runs import Run
from drivetrain.spec.exits import Exit, Failure


def table(request: Request) -> Response:
    """GET /api/runs"""
    board = board_of(request)
    wanted, problem = _filter("".join(texts(request, "filter", 1)))
    columns = texts(request, "column", 64)
    rows, every = [], board.rows()
    for run, row in every:
        if wanted is None or wanted.holds(lambda key, run=run, row=row: value_of(run, row, key)):
            rows.append(row | {"values": {name: value_of(run, row, name) for name in columns}})
    folders = [str(folder) for folder in board.runs.folders]
    told = {"runs": rows, "total": len(every), "read_only": board.read_only, "folders": folders}
    return answer(told | {"problem": problem or _unknown(wanted, every)})


def _filter(text: str) -> tuple[Filter | None, str | None]:
    """What was asked for, or what is wrong with it: then all runs are shown."""
    if not text.strip():
        return None, None
    try:
        return parse(text), None
    except Failure as failure:
        return None, f"{failure.outcome.cause}; {failure.outcome.hint}"


def _unknown(wanted: Filter | None, every: Sequence[tuple[Run, Line]]) -> str | None:
    """The first key of a filter that no run has; None where each is some run's."""
    for key in wanted.keys() if wanted and every else ():
        if not any(_knows(run, row, key) for run, row in every):
            return f"no run has {key!r}; “Columns…” lists what there is"
    return None


def _knows(run: Run, row: Line, key: str) -> bool:
    return key in _COLUMNS or key in row or key in run.recipe.values or key in series(run.index)


def value_of(run: Run, row: Mapping[str, Any], key: str) -> Any:
    """The value of a recipe's key, of a number by its name, or of what the table shows; None where there is none."""
    if key in _COLUMNS:
        return _COLUMNS[key](row)
    if key in run.recipe.values:
        return run.recipe.values[key]
    if key in row and not isinstance(row[key], (Mapping, list)):
        return row[key]
    return finite(last(run.index, key)) if key in series(run.index) else None


def _names(row: Mapping[str, Any]) -> list[str]:
    return [row["name"], row["title"]] if row["title"] else [row["name"]]


def _loss(row: Mapping[str, Any]) -> float | None:
    return next(iter(row["losses"].values()), None)


def _rate(row: Mapping[str, Any]) -> float | None:
    return row["rates"].get("tokens", row["rates"].get("samples"))


def _best(row: Mapping[str, Any]) -> float | None:
    return row["best"]["value"] if row["best"] else None


_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "name": _names,
    "run": _names,
    "tag": itemgetter("tags"),
    "tags": itemgetter("tags"),
    "time left": itemgetter("left"),
    "loss": _loss,
    "last loss": _loss,
    "best": _best,
    "best metric": _best,
    "rate": _rate,
    "MFU": itemgetter("mfu"),
    "processes": itemgetter("world"),
    "commit": itemgetter("commit_bytes"),
    "last record": itemgetter("last"),
}
"""Columns of the table whose names are not those of the answer."""


def keys(request: Request) -> Response:
    """GET /api/keys"""
    runs = board_of(request).runs.all.values()
    recipe = dict.fromkeys(key for run in runs for key in run.recipe.values)
    metrics = dict.fromkeys(name for run in runs for name in series(run.index))
    return answer({"keys": sorted(recipe), "metrics": sorted(metrics)})


async def say(request: Request) -> Response:
    """PATCH /api/runs/{id}"""
    board, run = board_of(request), run_of(request)
    board.notes.change(run.folder, await body(request))
    return answer(board.row(run))


async def remove(request: Request) -> Response:
    """DELETE /api/runs/{id}"""
    board, run = board_of(request), run_of(request)
    confirm = (await body(request)).get("confirm")
    if run.alive:
        raise Failure(Exit.OWNED_ELSEWHERE, f"{run.folder.name} trains", "stop it first")
    place = await run_in_threadpool(trash, run.folder, str(confirm))
    board.notes.forget(run.folder)
    # The answer does not wait for gigabytes to go: the run is out of sight already.
    return JSONResponse({"trash": str(place)}, background=BackgroundTask(empty, place))


def compare(request: Request) -> Response:
    """GET /api/compare"""
    board, by = board_of(request), axis(request)
    runs = [board.run(id) for id in texts(request, "run", 32)]
    return answer({"differences": differences(runs), "at_equal": at_equal(runs, by)})


def one(request: Request) -> Response:
    """GET /api/runs/{id}"""
    run = run_of(request)
    with run.index.lock:
        return answer({**board_of(request).row(run), **detail(run)})
