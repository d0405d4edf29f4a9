"""Memory and time by phase, as a run's telemetry tells. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from drivetrain.ledger.records import CommitRecord, Record, TelemetryRecord


def phases(history: Iterable[Record]) -> dict[str, float]:
    """Seconds that the first rank spent in each phase, of the steps that telemetry covers, the longest first."""
    total: dict[str, float] = {}
    for record in _told(history):
        for phase, seconds in record.phases.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def covered(history: Iterable[Record]) -> int:
    """How many steps telemetry covers."""
    return sum(record.steps for record in _told(history))


def peaks(history: Iterable[Record]) -> dict[str, int]:
    """The largest peak of memory of any rank, in bytes: `host`, and `device` where there is one."""
    found: dict[str, int] = {}
    for record in _told(history):
        for place in ("host", "device"):
            if spread := record.ranks.get(f"{place}_peak"):
                found[place] = max(found.get(place, 0), int(spread.most))
    return found


def held(history: Sequence[Record]) -> Mapping[str, int]:
    """What the newest commit held, in bytes by kind, and the size of gradients; empty where none tells."""
    for record in reversed(history):
        if isinstance(record, CommitRecord) and record.held:
            return record.held
    return {}


def slowest(history: Iterable[Record]) -> dict[int, int]:
    """How often each rank had the most work of its own, by rank; empty where a rank was alone."""
    found: dict[int, int] = {}
    for record in _told(history):
        own = record.ranks["own_seconds"]
        if record.world > 1:
            found[own.rank] = found.get(own.rank, 0) + 1
    return found


def scalars(record: TelemetryRecord) -> Iterator[tuple[str, float]]:
    """The tags and values of one record: bytes, and seconds a step."""
    for place, sizes in (("host", record.host), ("device", record.device)):
        for name, size in sizes.items():
            yield f"memory/{place}_{name}", float(size)
    for name, seconds in record.phases.items():
        yield f"phase/{name}", seconds / record.steps
    for name, counts in (record.counted or {}).items():
        # Of one number itself; of several the largest beside their mean: 1 where all are alike.
        yield (
            f"counted/{name}",
            float(counts[0] if len(counts) == 1 else max(counts) * len(counts) / max(1, sum(counts))),
        )
    if record.world > 1:
        own = record.ranks["own_seconds"]
        yield "ranks/least_seconds", own.least
        yield "ranks/most_seconds", own.most
        yield "ranks/slowest", float(own.rank)


def _told(history: Iterable[Record]) -> Iterator[TelemetryRecord]:
    for record in history:
        if isinstance(record, TelemetryRecord):
            yield record
