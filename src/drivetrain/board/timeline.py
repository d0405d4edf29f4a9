"""Where a run's time and memory went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from drivetrain.board.answers import AttemptSpent, CommitSpent, MemoryOverTime, RanksOverTime, Timeline
from drivetrain.board.index import Index
from drivetrain.board.lookup import seconds
from drivetrain.ledger import telemetry
from drivetrain.ledger.records import CommitRecord, Record, TelemetryRecord

_MOST = 2000  # records of a kind; of more, evenly chosen ones
T = TypeVar("T", bound=Record)


def timeline(index: Index) -> Timeline:
    """Seconds by use of each attempt, phases, the slowest ranks, commits and memory, as JSON data.

    Of thousands of records of telemetry evenly chosen ones are read: phases are then those of these.
    """
    told, seen = list(of_kind(index, TelemetryRecord)), list(of_kind(index, CommitRecord))
    attempts: list[AttemptSpent] = []
    for tally in index.tallies:
        summary = tally.told()
        attempts.append(
            {
                "number": summary.number,
                "started": summary.started,
                "ended": summary.ended,
                "seconds": tally.by_use(),
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


def _ranks(told: Sequence[TelemetryRecord]) -> RanksOverTime:
    found: RanksOverTime = {"step": [], "rank": [], "least": [], "most": [], "world": []}
    for record in told:
        own = record.ranks.get("own_seconds")
        if own is not None and record.world > 1:
            found["step"].append(record.step)
            found["rank"].append(own.rank)
            found["least"].append(own.least)
            found["most"].append(own.most)
            found["world"].append(record.world)
    return found


def _memory(told: Sequence[TelemetryRecord]) -> MemoryOverTime:
    found: MemoryOverTime = {"step": [], "time": [], "host": [], "host_peak": [], "device": [], "device_peak": []}
    for record in told:
        found["step"].append(record.step)
        found["time"].append(record.time)
        found["host"].append(record.host.get("resident"))
        found["host_peak"].append(record.host.get("peak"))
        found["device"].append(record.device.get("allocated"))
        found["device_peak"].append(record.device.get("peak"))
    return found


def _commit(record: CommitRecord) -> CommitSpent:
    return {
        "step": record.step,
        "time": record.time,
        "name": record.name,
        "seconds": record.seconds,
        "waited": record.waited,
        "writing": record.writing,
        "bytes": record.bytes,
    }
