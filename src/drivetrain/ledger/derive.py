"""What follows from a ledger: the final history, curves, metrics, where the time went. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]

_OF_A_STEP = ("step", "evaluation", "final", "telemetry", "commit", "show", "spike", "statistics")


def lineage(records: Iterable[Record]) -> list[Record]:
    """The history that counts: an attempt that begins at step s makes void what earlier attempts did after s."""
    history: list[Record] = []
    for record in records:
        if record["kind"] == "attempt":
            begin = record["from_step"]
            history = [r for r in history if not (r["kind"] in _OF_A_STEP and r["step"] > begin)]
        history.append(record)
    return history


def steps(history: Iterable[Record]) -> list[Record]:
    """The step records of a history, in order."""
    return [record for record in history if record["kind"] == "step"]


def left_out(history: Iterable[Record]) -> dict[str, int]:
    """How many steps of a history something did not move in, by the reason."""
    found: dict[str, int] = {}
    for record in steps(history):
        for why in set(record.get("skipped", {}).values()):
            found[why] = found.get(why, 0) + 1
    return found


def samples_used(history: Iterable[Record]) -> list[tuple[int, int, int, str]]:
    """For each step of a history: (step, start, stop, digest of the sample ids)."""
    return [(record["step"], record["start"], record["stop"], record["samples"]) for record in steps(history)]


def curve(history: Iterable[Record], loss: str) -> list[tuple[int, float]]:
    """(step, value) of one named training loss."""
    return [(record["step"], float(record["losses"][loss])) for record in steps(history) if loss in record["losses"]]


def scores(history: Iterable[Record]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(step, value) of each metric of each validation set."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for record in history:
        if record["kind"] == "evaluation":
            for name, metrics in record["metrics"].items():
                for metric, value in metrics.items():
                    found.setdefault((name, metric), []).append((record["step"], float(value)))
    return found


def finals(history: Iterable[Record]) -> dict[tuple[str, str, str], tuple[int, float]]:
    """The newest (step, value) of what is scored once a run is done: by part (validation, test), set and metric."""
    return {
        (record["part"], name, metric): (record["step"], float(value))
        for record in history
        if record["kind"] == "final"
        for name, metrics in record["metrics"].items()
        for metric, value in metrics.items()
    }


@dataclass(frozen=True)
class Attempt:
    """One start of a run: where it began and ended, when, and why it ended (None where it was cut off)."""

    number: int
    world: int
    from_step: int
    to_step: int
    started: float
    ended: float
    code: int | None
    cause: str


def attempts(records: Sequence[Record]) -> list[Attempt]:
    """All attempts, those that were cut off too."""
    found: list[Attempt] = []
    for own in _by_attempt(records):
        first = own[0]
        exits = [record for record in own if record["kind"] == "exit"]
        made = [record["step"] for record in own if record["kind"] == "step"]
        found.append(
            Attempt(
                number=first["attempt"],
                world=first["world"],
                from_step=first["from_step"],
                to_step=made[-1] if made else first["from_step"],
                started=first["started"],
                ended=own[-1]["time"],
                code=exits[-1]["code"] if exits else None,
                cause=exits[-1]["cause"] if exits else "cut off",
            )
        )
    return found


BUCKETS = ("start", "data wait", "step", "evaluation", "commit", "lost work", "between attempts", "other")


def buckets(records: Sequence[Record]) -> dict[str, float]:
    """Seconds by use; they add up to the time from the first attempt's start to the last attempt's last record.

    Lost work is the time of steps that a later attempt made again. Other is what no record tells: the end of an attempt
    that was cut off, and the writing of the last records. Where the clock was set back meanwhile, the time between
    attempts, or other, is below zero.
    """
    total: dict[str, float] = dict.fromkeys(BUCKETS, 0.0)
    kept = {id(record) for record in lineage(records)}
    previous_end: float | None = None
    for attempt in _by_attempt(records):
        started, ended = attempt[0]["started"], attempt[-1]["time"]
        total["between attempts"] += started - previous_end if previous_end is not None else 0.0
        previous_end = ended
        total["other"] += ended - started
        for record in attempt:
            for bucket, seconds in _seconds(record, kept=id(record) in kept):
                total[bucket] += seconds
                total["other"] -= seconds
    return total


def goodput(records: Sequence[Record]) -> float:
    """The share of the time from the first start to the last record in which steps were made that count."""
    spent = buckets(records)
    whole = sum(spent.values())
    return spent["step"] / whole if whole else 0.0


def _seconds(record: Record, kept: bool) -> list[tuple[str, float]]:
    kind = record["kind"]
    if kind == "attempt":
        return [("start", sum(record["startup"].values()))]
    if kind == "step":
        return [("step" if kept else "lost work", record["seconds"]), ("data wait", record["wait"])]
    if kind in ("evaluation", "commit"):
        return [(kind, record["seconds"])]
    if kind == "final":
        return [("evaluation", record["seconds"])]
    return []


def _by_attempt(records: Iterable[Record]) -> list[list[Record]]:
    """Records from one attempt record to the next; a repair is made before an attempt and belongs to none."""
    groups: list[list[Record]] = []
    for record in records:
        if record["kind"] == "attempt":
            groups.append([])
        if groups and record["kind"] != "repair":
            groups[-1].append(record)
    return groups
