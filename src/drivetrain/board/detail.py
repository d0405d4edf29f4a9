"""A run as a whole: its curves by name, its attempts, where its time went."""

from __future__ import annotations

import json

from drivetrain.board.answers import AttemptMade, OwnDetail, Plan, Recipe, Series
from drivetrain.board.index import Index
from drivetrain.board.lookup import last, seconds, series
from drivetrain.board.recipes import read_json
from drivetrain.board.runs import Run
from drivetrain.board.steps import AXES, TOKENS
from drivetrain.ledger import plans
from drivetrain.ledger.records import AttemptRecord, CommitRecord, PlanRecord, Record, TelemetryRecord
from drivetrain.ledger.run_summary import AttemptTally


def detail(run: Run) -> OwnDetail:
    """What a run's page shows besides its line, as JSON data."""
    index = run.index
    axes = [name for name in AXES if name != "tokens" or index.groups.newest[TOKENS] > 0]
    return {
        "series": _series(index),
        "kinds": kinds(index),
        "attempts_made": list(map(_attempt, index.tallies)),
        "seconds": seconds(index),
        "parameters": index.tallies[-1].first.parameters if index.tallies else {},
        "axes": axes,
    }


def _series(index: Index) -> list[Series]:
    found = []
    for name, rows in series(index).items():
        found.append({"name": name, "rows": rows, "last": last(index, name), "dense": name in index.groups.series})
    return found


def kinds(index: Index) -> dict[str, int]:
    """How many records of each kind there are."""
    found = index.others.counts()
    steps = index.records - sum(count for kind, count in found.items() if kind != "skip")
    return {"step": steps} | found


def _attempt(tally: AttemptTally) -> AttemptMade:
    first, told = tally.first, tally.told()
    return {
        "number": told.number,
        "world": told.world,
        "from_step": told.from_step,
        "to_step": told.to_step,
        "started": told.started,
        "ended": told.ended,
        "code": told.code,
        "cause": told.cause,
        "host": first.host,
        "device": first.device,
        "seconds": tally.by_use(),
        "after": first.after,
        "claim": first.claim.to_json(),
    }


def recipe_of(run: Run) -> Recipe:
    """The recipe with where each value comes from, the newest start's environment, and the user's own code."""
    values = []
    for key, value in run.recipe.values.items():
        values.append({"key": key, "value": value, "origin": run.recipe.origins.get(key, "default")})
    attempt = run.index.tallies[-1].first if run.index.tallies else None
    code = attempt.user_code.to_json() if attempt and attempt.user_code else None
    return {"values": values, "environment": read_json(run.folder / "environment.json"), "code": code}


def plan_of(index: Index) -> Plan:
    """What was planned beside the run, and what it came to; empty where there is no plan."""
    history: list[Record] = []
    with index.lock:
        for offset in reversed(list(index.others.offsets(_PLANNED))):
            history.append(index.record(offset))
    kept = [record for record in history if isinstance(record, _OF_PLANS)]
    return json.loads(json.dumps(plans.beside(kept), default=str))


_OF_PLANS = (AttemptRecord, PlanRecord, CommitRecord, TelemetryRecord)
_PLANNED = [cls.kind for cls in _OF_PLANS]
