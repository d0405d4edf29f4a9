"""`drivetrain report RUN ... --html FILE`: runs with all that their pages show, in one file that opens anywhere."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from drivetrain.board import files
from drivetrain.board.bundle import bundled
from drivetrain.board.commits import commits
from drivetrain.board.comparing import at_equal, differences, differing
from drivetrain.board.detail import detail, plan_of, recipe_of
from drivetrain.board.encoding import encoded
from drivetrain.board.index import Index
from drivetrain.board.lookup import series, span
from drivetrain.board.marks import marks
from drivetrain.board.notes import Note
from drivetrain.board.recipes import RecipeFile
from drivetrain.board.row import finite, row
from drivetrain.board.runs import Run, look_at, run_id
from drivetrain.board.samples import data_of
from drivetrain.board.steps import AXES, STEP, TOKENS
from drivetrain.board.timeline import timeline
from drivetrain.board.zoom import Window
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch.tracker_mark import without_secrets

_POINTS = 600  # of a curve
_MARKS = 500  # of a kind, the newest
_RECORDS = 200  # of the ledger, the newest that are no steps
_FILES = 4 << 20  # bytes of sounds and pictures of a run, the newest


def one_file(folders: Sequence[Path]) -> str:
    """The page of these runs, as HTML.

    Raises Failure: 66 where one has no ledger, 74 where one is damaged before its end.
    """
    runs = [_opened(folder) for folder in folders]
    kept: dict[str, Any] = {"answers": {}, "curves": {}, "places": {}, "files": {}}
    rows = [{**row(run), **Note().told(), "read_only": True, "values": {}} for run in runs]
    kept["answers"]["/api/runs"] = {"runs": rows, "total": len(rows), "read_only": True, "folders": [], "problem": None}
    kept["answers"]["/api/keys"] = {"keys": [], "metrics": []}
    for run, told in zip(runs, rows, strict=True):
        for name, value in _answers(run, told, runs).items():
            kept["answers"][f"/api/runs/{run.id}{name}"] = finite(value)
        kept["curves"][run.id], kept["places"][run.id] = _curves(run.index)
        kept["files"] |= _files(run)
    for axis, by in enumerate(AXES):
        compared = {"differences": differences(runs), "at_equal": at_equal(runs, axis)}
        kept["answers"][f"/api/compare {by}"] = finite(compared)
    return bundled(*_page(), kept)


def _opened(folder: Path) -> Run:
    folder = folder.resolve()
    index = Index(folder / "ledger.jsonl")
    try:
        index.follow_all()
    except FileNotFoundError:
        raise Failure(Exit.INPUT_MISSING, f"no ledger in {folder}", "name a run directory") from None
    if index.damage:
        raise Failure(Exit.STORAGE, f"{index.ledger}: {index.damage}", "restore the ledger from a copy")
    run = Run(run_id(folder), folder, index, RecipeFile(folder))
    look_at(run, time.monotonic())
    return run


def _answers(run: Run, told: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """What the run's pages ask the board for, by the end of the path."""
    found, left_out = marks(run.index, _MARKS)
    answers: dict[str, Any] = {
        "": {**told, **detail(run)},
        "/marks": {"marks": found, "left_out": left_out},
        "/time": timeline(run.index),
        "/recipe": recipe_of(run),
        "/plan": plan_of(run.index),
        "/commits": {"commits": commits(run)},
        "/data": data_of(run.index),
        "/gallery": files.gallery(run.index),
        "/logs": {"logs": [], "profiles": []},
        "/records": _records(run.index),
        "/commands": {"commands": []},
    }
    for other in runs:
        if other is not run:
            differ = differing(run.recipe.values, other.recipe.values)
            answers[f"/recipe {other.id}"] = {"differences": differ}
    return answers


def _records(index: Index) -> dict[str, Any]:
    """The newest records that are no steps."""
    rows = []
    for offset in index.others.offsets(index.others.kinds):
        rows.append({"offset": offset, "record": without_secrets(json.loads(index.line(offset)))})
        if len(rows) == _RECORDS:
            break
    return {"records": rows, "more": False, "before": 0, "chain": _chain(index)}


def _chain(index: Index) -> dict[str, Any]:
    return {"whole": not index.damage, "checked": index.records, "damage": index.damage or None}


def _curves(index: Index) -> tuple[str, dict[str, Any]]:
    """All curves by step; and where the same points are on the other axes: `of` has for each curve its place in `x`.
    Curves of steps share theirs."""
    names = list(series(index))
    head = {"records": index.records, "rows": len(index.groups), "span": span(index, STEP)}
    by_step = encoded(index.curves(names, Window(STEP, points=_POINTS)), head)
    places = {}
    for axis, name in enumerate(AXES):
        if axis == STEP or (axis == TOKENS and not index.groups.newest[TOKENS]):
            continue
        found = index.curves(names, Window(axis, points=_POINTS))
        each = [curve.x.astype("<f8").tobytes() for curve in found.values()]
        different = list(dict.fromkeys(each))
        places[name] = {"of": list(map(different.index, each)), "x": list(map(_text, different))}
    return _text(by_step), places


def _files(run: Run) -> dict[str, str]:
    """Sounds and pictures of the gallery as addresses that hold them, the newest first, up to a bound."""
    found, left = {}, _FILES
    for item in reversed(files.gallery(run.index)["items"]):
        if "file" not in item:
            continue
        try:
            path, kind = files.shown(run.folder, item["file"])
            data = path.read_bytes() if path.stat().st_size <= left else b""
        except (Failure, OSError):  # it was removed: the page shows none
            continue
        if data:
            left -= len(data)
            found[f"{run.id} {item['file']}"] = f"data:{kind};base64,{_text(data)}"
    return found


def _page() -> tuple[str, dict[str, str], str]:
    """The script of others that the page takes, its modules by their paths, and its styles."""
    static = resources("drivetrain.board") / "static"
    modules = {}
    for folder in ("", "pages/", "onefile/"):
        for part in (static / folder).iterdir() if folder else static.iterdir():
            if part.name.endswith(".js"):
                modules[f"{folder}{part.name}"] = part.read_text(encoding="utf-8")
    for asks in ("enter.js", "api.js", "events.js"):
        del modules[asks]
    styles = [(static / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.css", "board.css")]
    vendored = (static / "vendor" / "uPlot.js").read_text(encoding="utf-8")
    return vendored, modules, "\n".join(styles)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
