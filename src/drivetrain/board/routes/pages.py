"""What the pages of one run show beside its curves."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from drivetrain.board import files
from drivetrain.board.board import board_of, run_of
from drivetrain.board.commits import commits as commits_of
from drivetrain.board.comparing import differing
from drivetrain.board.detail import plan_of, recipe_of
from drivetrain.board.routes.queries import answer, body, number, texts
from drivetrain.board.samples import data_of
from drivetrain.board.timeline import timeline
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch.tracker_mark import without_secrets

OF_COMMITS = {"verify": ["verify"], "pin": ["pin"], "unpin": ["pin", "--off"], "remove": ["rm"]}
"""What can be done with a commit, and the words of `drivetrain checkpoint` for it."""
_VERIFY = 1800.0  # seconds: every byte is read
_DECODE = 120.0  # seconds: the data are opened by the user's own code
_DECODED = 16  # samples at a time
_FARTHEST = 1 << 48


def time(request: Request) -> Response:
    """GET /api/runs/{id}/time"""
    return answer(timeline(run_of(request).index))


def recipe(request: Request) -> Response:
    """GET /api/runs/{id}/recipe"""
    run = run_of(request)
    if other := "".join(texts(request, "other", 1)):
        there = board_of(request).run(other).recipe.values
        return answer({"differences": differing(run.recipe.values, there)})
    return answer(recipe_of(run))


def commits(request: Request) -> Response:
    """GET /api/runs/{id}/commits"""
    return answer({"commits": commits_of(run_of(request))})


async def commit(request: Request) -> Response:
    """POST /api/runs/{id}/commits/{commit}"""
    run, name, what = run_of(request), request.path_params["commit"], (await body(request)).get("act")
    words = OF_COMMITS.get(what) if isinstance(what, str) else None
    known = {row["name"] for row in commits_of(run)}
    # By its name in the ledger: nothing that was sent becomes an option of a command.
    if words is None or name not in known:
        raise Failure(Exit.INPUT_MISSING, f"no commit {name[:40]!r}, or nothing to do", "the page lists them")
    ask = board_of(request).children.ask
    if what == "verify":
        rows = await ask("checkpoint", "verify", str(run.folder), seconds=_VERIFY)
        damage = next((row["damage"] for row in rows if row["name"] == name), "it is not there")
        return answer({"said": damage or "every byte is as it was written"})
    verb, *options = words
    await ask("checkpoint", verb, str(run.folder), name, *options)
    return answer({"said": "done"})


def data(request: Request) -> Response:
    """GET /api/runs/{id}/data"""
    return answer(data_of(run_of(request).index))


async def samples(request: Request) -> Response:
    """POST /api/runs/{id}/samples"""
    run, told = run_of(request), await body(request)
    position = told.get("position")
    if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position <= _FARTHEST:
        raise Failure(Exit.BAD_COMMAND, "a position is a whole number from 0 on", "take one of a step")
    options = ["--position", str(position), "--count", str(_DECODED)]
    found = await board_of(request).children.ask("data", "inspect", str(run.folder), *options, seconds=_DECODE)
    return answer({"samples": without_secrets(found)})


def gallery(request: Request) -> Response:
    """GET /api/runs/{id}/gallery"""
    return answer(files.gallery(run_of(request).index))


def file(request: Request) -> Response:
    """GET /api/runs/{id}/file"""
    path, kind = files.shown(run_of(request).folder, "".join(texts(request, "path", 1)))
    name = path.name if kind == files.DOWNLOAD else None
    return FileResponse(path, media_type=kind, filename=name)


def logs(request: Request) -> Response:
    """GET /api/runs/{id}/logs"""
    folder = run_of(request).folder
    name = "".join(texts(request, "name", 1))
    if not name:
        return answer({"logs": files.logs(folder), "profiles": files.profiles(folder)})
    return answer(files.tail(folder, name, int(number(request, "end", -1))))


def plan(request: Request) -> Response:
    """GET /api/runs/{id}/plan"""
    return answer(plan_of(run_of(request).index))


async def verify(request: Request) -> Response:
    """POST /api/runs/{id}/verify"""
    verifications, run = board_of(request).verifications, run_of(request)
    verifications.start(run)
    return answer(verifications.state(run), 202)


async def verified(request: Request) -> Response:
    """GET /api/runs/{id}/verify"""
    return answer(board_of(request).verifications.state(run_of(request)))
