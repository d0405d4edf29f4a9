"""What follows from a ledger: the final history, curves, metrics, where the time went. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drivetrain.ledger.records import EvaluationRecord, FinalRecord, Record, StepRecord
from drivetrain.ledger.run_summary import AttemptSummary, goes_back_to, is_void, summarize
from drivetrain.ledger.throughput import Throughput


def lineage(records: Iterable[Record]) -> list[Record]:
    """The history that counts: an attempt that begins at step s, or a rollback to s, makes void what was done after."""
    history: list[Record] = []
    for record in records:
        begin = goes_back_to(record)
        if begin is not None:
            history = [before for before in history if not is_void(before, begin)]
        history.append(record)
    return history


def steps(history: Iterable[Record]) -> list[StepRecord]:
    """The step records of a history, in order."""
    return [record for record in history if isinstance(record, StepRecord)]


def samples_used(history: Iterable[Record]) -> list[tuple[int, int, int, str]]:
    """For each step of a history: (step, start, stop, digest of the sample ids)."""
    return [(step.step, step.start, step.stop, step.samples) for step in steps(history)]


def curve(history: Iterable[Record], loss: str) -> list[tuple[int, float]]:
    """(step, value) of one named training loss."""
    return [(step.step, step.losses[loss]) for step in steps(history) if loss in step.losses]


def scores(history: Iterable[Record]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(step, value) of each metric of each validation set."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for record in history:
        if isinstance(record, EvaluationRecord):
            for name, metrics in record.metrics.items():
                for metric, value in metrics.items():
                    found.setdefault((name, metric), []).append((record.step, float(value)))
    return found


def finals(history: Iterable[Record]) -> dict[tuple[str, str, str], tuple[int, float]]:
    """The newest (step, value) of what is scored once a run is done: by part (validation, test), set and metric."""
    found = {}
    for record in history:
        if isinstance(record, FinalRecord):
            for name, metrics in record.metrics.items():
                for metric, value in metrics.items():
                    found[record.part, name, metric] = (record.step, float(value))
    return found


def evaluations(history: Iterable[Record]) -> list[dict[str, Any]]:
    """Each evaluation of a history once, in order: its `step`, `position` (samples), `time` (seconds since 1970) and
    `part` (validation, test), and its scores by SET/METRIC. Where one was made again, the newest."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for record in history:
        if not isinstance(record, (EvaluationRecord, FinalRecord)):
            continue
        part = record.part if isinstance(record, FinalRecord) else "validation"
        row: dict[str, Any] = {"step": record.step, "position": record.position, "time": record.time, "part": part}
        for name, metrics in record.metrics.items():
            for metric, value in metrics.items():
                row[f"{name}/{metric}"] = float(value)
        found[record.kind, record.step, ",".join(record.counts)] = row
    return list(found.values())


def attempts(records: Iterable[Record]) -> list[AttemptSummary]:
    """All attempts, those that were cut off too."""
    return summarize(records).attempts


def buckets(records: Iterable[Record]) -> dict[str, float]:
    """Seconds by use, as `RunSummary.seconds` tells them."""
    return summarize(records).seconds


def goodput(records: Iterable[Record]) -> float:
    """The share of the time from the first start to the last record in which steps were made that count."""
    return summarize(records).goodput


def throughput(records: Iterable[Record], last: int | None = None) -> Throughput:
    """That of the last steps, of all where `last` is None, by the time of steps and of their data."""
    return summarize(records).throughput(last)
