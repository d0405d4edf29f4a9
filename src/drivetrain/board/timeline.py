"""Where a run's time and memory went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from drivetrain.board.index import Index
from drivetrain.board.lookup import seconds
from drivetrain.ledger import telemetry
from drivetrain.ledger.records import CommitRecord, Record, TelemetryRecord

_MOST = 2000  # records of a kind; of more, evenly chosen ones
T = TypeVar("T", bound=Record)


def timeline(index: Index) -> dict[str, Any]:
    """Seconds by use of each attempt, phases, the slowest ranks, commits and memory, as JSON data.

    Of thousands of records of telemetry evenly chosen ones are read: phases are then those of these.
    """
    told, seen = list(of_kind(index, TelemetryRecord)), list(of_kind(index, CommitRecord))
    attempts = []
    for tally in index.tallies:
        summary = tally.told()
        attempts.append(
            {
                "number": summary.number,
                "started": summary.started,
                "ended": summary.ended,
                "seconds": dict(tally.seconds),
            }
        )
    return {
        "attempts": attempts,
        "seconds": seconds(index),
        "phases": telemetry.phases(told),
        "slowest": telemetry.slowest(told),
        "ranks": _ranks(told),
        "memory": _memory(told),
        "commits": [_commit(record) for record in seen],
    }


def of_kind(index: Index, kind: type[T]) -> Iterator[T]:
    """The records of a kind that are not void, in order; of very many some, evenly chosen."""
    with index.lock:
        offsets = list(index.others.offsets([kind.kind]))[::-1]
    wide = -(-len(offsets) // _MOST) if offsets else 1
    for offset in offsets[::wide]:
        record = index.record(offset)
        if isinstance(record, kind):
            yield record


def _ranks(told: Sequence[TelemetryRecord]) -> dict[str, list[Any]]:
    """Of each record: its step, which rank had most work of its own, and the least and most seconds a step."""
    found: dict[str, list[Any]] = {"step": [], "rank": [], "least": [], "most": [], "world": []}
    for record in told:
        own = record.ranks.get("own_seconds")
        if own is not None and record.world > 1:
            values = (record.step, own.rank, own.least, own.most, record.world)
            for name, value in zip(found, values, strict=True):
                found[name].append(value)
    return found


def _memory(told: Sequence[TelemetryRecord]) -> dict[str, list[Any]]:
    """Bytes of the first rank: its process, and its device where there is one."""
    found: dict[str, list[Any]] = {"step": [], "time": [], "host": [], "host_peak": [], "device": [], "device_peak": []}
    for record in told:
        host, device = record.host, record.device
        values = (record.step, record.time, host.get("resident"), host.get("peak"))
        values = (*values, device.get("allocated"), device.get("peak"))
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return found


def _commit(record: CommitRecord) -> dict[str, Any]:
    names = ("step", "time", "name", "seconds", "waited", "writing", "bytes")
    return {name: getattr(record, name) for name in names}
