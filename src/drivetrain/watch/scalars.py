"""What records tell as numbers: tags and values, the same in TensorBoard, in trackers and on the board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drivetrain.ledger import telemetry
from drivetrain.ledger.records import (
    EvaluationRecord,
    FinalRecord,
    Histogram,
    Record,
    Scores,
    StatisticsRecord,
    StepRecord,
    TelemetryRecord,
    TrainingRecord,
)
from drivetrain.ledger.throughput import trained


def scalars(record: Record, full_rate: float = 0.0) -> Iterator[tuple[str, float]]:
    """The tags and values of a step's, an evaluation's or telemetry's record, and of the scores at a run's end.

    `full_rate` are the samples a second that would be an MFU of 1 in its attempt, 0 where that is not known.
    """
    match record:
        case StepRecord():
            yield from _below("train", record.losses)
            yield from _below("loss_weight", record.weights or {})
            yield from _below("gradient_norm", record.norm)
            yield from _below("learning_rate", record.lr)
            yield from _rates(record, full_rate)
        case EvaluationRecord():
            yield from _scores(record.metrics)
        case TrainingRecord():
            yield from _below("training", record.metrics)
            yield from _below("training_mean", record.means)
        case FinalRecord():
            for tag, value in _scores(record.metrics):
                yield f"{record.part}/{tag}", value
        case StatisticsRecord():
            for network, numbers in record.networks.items():
                yield from _below(f"statistics/{network}", numbers)
        case TelemetryRecord():
            yield from telemetry.scalars(record)


def histograms(record: Record) -> Iterator[tuple[str, Histogram]]:
    """The tags and histograms of a record of statistics, where it has some."""
    if isinstance(record, StatisticsRecord) and record.histograms:
        for network, told in record.histograms.items():
            for name, one in told.items():
                yield f"histograms/{network}/{name}", one


def _below(group: str, values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        yield f"{group}/{name}", value


def _rates(step: StepRecord, full_rate: float) -> Iterator[tuple[str, float]]:
    seconds = step.seconds + step.wait
    if seconds > 0:
        # A step in which nothing moved has trained nothing.
        rates = {unit: count * trained(step) / seconds for unit, count in step.counts.items()}
        for unit, rate in rates.items():
            yield f"{unit}_per_second/all", rate
        if full_rate:
            yield "mfu/all", rates["samples"] / full_rate


def _scores(metrics: Scores) -> Iterator[tuple[str, float]]:
    for name, values in metrics.items():
        for metric, value in values.items():
            yield f"{name}/{metric}", float(value)
