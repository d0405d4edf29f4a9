"""Settings of evaluation, and of what ends a run before its budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import StringConstraints

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, NonNegative, Positive, Settings, cost, nothing

Duration = Positive | Annotated[str, StringConstraints(pattern=r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$", min_length=2)]
"""Seconds, or text such as 2h30m."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Settings):
    """When the validation sets are scored. They are scored at the end in any case."""

    every: Annotated[Amount | None, cost("between evaluations; null: only at the end")] = None
    batch: Annotated[
        Count | None, cost("samples per forward pass and process; the training micro-batch where absent")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Patience(Settings):
    """Early stopping: the run is done when a metric no longer gets better."""

    metric: Annotated[str, cost("SET/METRIC, such as stdlib/bits_per_byte")]
    mode: Annotated[Literal["min", "max"], cost("whether small or large is good")] = "min"
    evaluations: Annotated[Count, cost("in a row without a better score after which the run is done")] = 3
    change: Annotated[NonNegative, cost("by how much a score must be better than the best one")] = 0.0


@dataclass(frozen=True, kw_only=True)
class Stop(Settings):
    """What ends a run before its budget."""

    patience: Annotated[Patience | None, cost("early stopping; null: none")] = None
    deadline: Annotated[Duration | None, nothing("seconds, or such as 2h30m, after which it commits and ends")] = None
    counted_from: Annotated[Literal["first", "this"], nothing("the attempt whose start the deadline counts from")] = (
        "this"
    )
    margin: Annotated[NonNegative, nothing("seconds before Slurm's own end of the job at which it ends")] = 60.0
    at: Annotated[tuple[Count, ...], nothing("steps after which it commits and ends, to be started again")] = ()
