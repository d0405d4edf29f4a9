"""What the pages of one run show beside its curves."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from drivetrain.board import files
from drivetrain.board.board import board_of, run_of
from drivetrain.board.recipes import read_json
from drivetrain.board.routes.queries import answer, body, number, texts
from drivetrain.board.timeline import of_kind, timeline
from drivetrain.ledger import plans
from drivetrain.ledger.records import AttemptRecord, CommitRecord, PlanRecord, Record, TelemetryRecord
from drivetrain.spec.exits import Exit, Failure

_OF_COMMITS = {"verify": ["verify"], "pin": ["pin"], "unpin": ["pin", "--off"], "remove": ["rm"]}
_VERIFY = 1800.0  # seconds: every byte is read


def time(request: Request) -> Response:
    """GET /api/runs/{id}/time"""
    return answer(timeline(run_of(request).index))


def recipe(request: Request) -> Response:
    """GET /api/runs/{id}/recipe"""
    run = run_of(request)
    if other := "".join(texts(request, "other", 1)):
        there = board_of(request).run(other).recipe.values
        return answer({"differences": _differences(run.recipe.values, there)})
    values = []
    for key, value in run.recipe.values.items():
        values.append({"key": key, "value": value, "origin": run.recipe.origins.get(key, "default")})
    attempt = run.index.tallies[-1].first if run.index.tallies else None
    code = attempt.user_code.to_json() if attempt and attempt.user_code else None
    return answer({"values": values, "environment": read_json(run.folder / "environment.json"), "code": code})


def _differences(here: Any, there: Any) -> list[dict[str, Any]]:
    found = []
    for key in dict.fromkeys([*here, *there]):
        if key not in here or key not in there or here[key] != there[key]:
            found.append({"key": key, "here": here.get(key), "there": there.get(key)})
    return found


def commits(request: Request) -> Response:
    """GET /api/runs/{id}/commits"""
    run = run_of(request)
    return answer({"commits": files.commits(run.folder, list(of_kind(run.index, CommitRecord)))})


async def commit(request: Request) -> Response:
    """POST /api/runs/{id}/commits/{commit}"""
    run, name, what = run_of(request), request.path_params["commit"], (await body(request)).get("act")
    words = _OF_COMMITS.get(what) if isinstance(what, str) else None
    known = {row["name"] for row in files.commits(run.folder, list(of_kind(run.index, CommitRecord)))}
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
    index = run_of(request).index
    history: list[Record] = []
    with index.lock:
        for offset in reversed(list(index.others.offsets(["attempt", "plan", "commit", "telemetry"]))):
            history.append(index.record(offset))
    kept = (AttemptRecord, PlanRecord, CommitRecord, TelemetryRecord)
    found = plans.beside([record for record in history if isinstance(record, kept)])
    return answer(json.loads(json.dumps(found, default=str)))
