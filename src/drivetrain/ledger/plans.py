"""What was planned beside a run, and what it has come to. Pure functions of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.ledger.records import AttemptRecord, CommitRecord, Planned, PlanRecord, Record, TelemetryRecord
from drivetrain.ledger.telemetry import peaks

_COMMITS = "all files of the commits that lay there together"
_FILES = "of the newest commit"
_ALLOCATOR = "the allocator's peak of any rank's device"
_RESIDENT = "rank 0's process in memory at its largest, without what it had before its networks"


def beside(history: Sequence[Record]) -> dict[str, Any]:
    """The newest plan as plain data, with `rows`: by name what was `planned`, what was `measured` (None: nothing yet)
    and what that number is, in bytes. `flops` are those of all processes in a step. Empty where there is no plan.

    Measured is what came since the attempt began that the plan was made beside.
    """
    place, plan = _newest(history)
    if plan is None:
        return {}
    told = {"failed": None, **plan.to_json(), "rows": {}, "flops": None}
    if planned := plan.planned:
        since = history[_attempt_before(history, place) :]
        commits = [record for record in since if isinstance(record, CommitRecord)]
        told["rows"] = {
            "memory": _memory(planned, since),
            "commit": _row(planned.ranks["0"].written, commits[-1].written if commits else None, _FILES),
            "disk": _row(planned.kept * planned.state, _most_on_disk(commits), _COMMITS),
        }
        of_ranks = [rank.flops for rank in planned.ranks.values()]
        told["flops"] = sum(of_ranks) * plan.world // len(of_ranks)
    return told


def _newest(history: Sequence[Record]) -> tuple[int, PlanRecord | None]:
    for place in reversed(range(len(history))):
        record = history[place]
        if isinstance(record, PlanRecord):
            return place, record
    return 0, None


def _attempt_before(history: Sequence[Record], place: int) -> int:
    while place and not isinstance(history[place], AttemptRecord):
        place -= 1
    return place


def _memory(planned: Planned, since: Sequence[Record]) -> dict[str, Any]:
    """Live bytes, of the rank with most; beside the device's allocator, or where there is none what a process takes."""
    most = max(max(rank.first.bytes, rank.later.bytes) for rank in planned.ranks.values())
    found = peaks(since)
    if "device" in found:
        return _row(most, found["device"], _ALLOCATOR)
    before, taken = None, None
    for record in since:
        if isinstance(record, AttemptRecord):
            before = record.resident
        elif isinstance(record, TelemetryRecord) and before is not None:
            taken = max(taken or 0, record.host["peak"] - before)
    return _row(most, taken, _RESIDENT)


def _most_on_disk(commits: Sequence[CommitRecord]) -> int | None:
    """Bytes of the commits that lay there together, where these were most: one is written before others go."""
    there: dict[str, int] = {}
    most = 0
    for commit in commits:
        there[commit.name] = commit.bytes
        most = max(most, sum(there.values()))
        for name in commit.removed:
            there.pop(name, None)
    return most or None


def _row(planned: int, measured: int | None, what: str) -> dict[str, Any]:
    return {"planned": planned, "measured": measured, "measured_as": what}
