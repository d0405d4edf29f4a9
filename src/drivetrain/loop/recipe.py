"""Settings of evaluation, and of what ends a run before its budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt, MinLen
from pydantic import StringConstraints

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, Duration, NonNegative, Positive, Settings, Whole, bits, cost, nothing

_EVERY = Amount(steps=100)
Steps = Count | Annotated[str, StringConstraints(pattern=r"^[1-9]\d*-[1-9]\d*$")]
"""A step, or the first and the last of several."""


@dataclass(frozen=True, kw_only=True)
class Show(Settings):
    """When the task shows what it makes of some samples, evaluated or not. It shows at the end in any case."""

    every: Annotated[Amount | None, nothing("between two times; null: only at the end")] = None


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """Scores of training samples, by the validation metrics: those of a step, just before it learns from them."""

    every: Annotated[Amount, cost("between steps whose samples are scored, which takes a forward pass more")]
    decay: Annotated[
        float, Ge(0), Lt(1), cost("in the running means, what an older score counts beside the next one")
    ] = 0.9


@dataclass(frozen=True, kw_only=True)
class Evaluate(Settings):
    """When the validation sets are scored. They are scored at the end in any case."""

    every: Annotated[Amount | None, cost("between evaluations; null: only at the end")] = None
    batch: Annotated[
        Count | None, cost("samples per forward pass and process; the training micro-batch where absent")
    ] = None
    budget: Annotated[
        Amount | None, cost("score only so many samples or tokens of each set, its first ones; null: all of them")
    ] = None
    full_at_end: Annotated[bool, cost("where `budget` leaves some out, also score whole sets once it is done")] = True
    show: Annotated[Show | None, nothing("when the task shows something; null: after each evaluation")] = None
    training: Annotated[
        Training | None, cost("score training samples, too, before they are learned from; null: none", later=True)
    ] = None
    metrics: Annotated[
        Mapping[str, Any], cost("beside the task's, by name: kinds as package.module:Name", later=True)
    ] = field(default_factory=dict)

    def most(self, tokens_per_sample: int | None) -> int | None:
        """How many samples of each set are scored at most; None: all."""
        if self.budget is None:
            return None
        if self.budget.tokens is None or tokens_per_sample is None:
            return self.budget.samples
        return -(-self.budget.tokens // tokens_per_sample)

    def __post_init__(self) -> None:
        if self.budget is not None and not self.budget.given.keys() <= {"samples", "tokens"}:
            raise ValueError(f"budget is in samples or tokens, not {', '.join(self.budget.given)}")
        for name in self.metrics:
            if not re.fullmatch(r"[\w.-]+", name):
                raise ValueError(f"metrics: a name is of letters, digits, '_', '-' and '.', not {name!r}")


@dataclass(frozen=True, kw_only=True)
class Spike(Settings):
    """A loss or gradient norm far above those of the steps before: `deviations` beyond the median of a window."""

    window: Annotated[int, Ge(4), bits("steps that it is compared with; half as many must be there")] = 100
    deviations: Annotated[Positive, bits("how far above the median, in robust standard deviations")] = 10.0
    action: Annotated[
        Literal["note", "skip", "stop", "rollback"],
        bits("say so, leave the step out, end with 82, or go back and leave the step's samples out"),
    ] = "note"


@dataclass(frozen=True, kw_only=True)
class Rollback(Settings):
    """How far a run goes back, without a restart, and how often its state is copied in memory for that."""

    back: Annotated[Count, bits("steps to go back, or more; fewer after a commit, which is never undone")] = 10
    every: Annotated[Count, bits("steps between two copies; back / every + 1 of them are kept")] = 10


@dataclass(frozen=True, kw_only=True)
class Guard(Settings):
    """What becomes of steps whose losses or gradients are not finite, or stand out."""

    nonfinite: Annotated[
        Literal["stop", "skip", "rollback"],
        bits("end with 82 and the samples that did it, leave the step out, or go back and leave the samples out"),
    ] = "stop"
    in_a_row: Annotated[Count, bits("steps that may be left out, or undone, one after the other")] = 3
    in_all: Annotated[Count, bits("steps that may be left out, or undone, in the whole run")] = 100
    rollback: Annotated[Rollback, bits("where an action is `rollback`: how it goes back")] = Rollback()
    spike: Annotated[Spike | None, bits("numbers that stand out; null: they are not looked for")] = None
    skip: Annotated[tuple[Steps, ...], bits("steps that are not made, such as 120 or 300-320; their data are")] = ()
    quarantine: Annotated[tuple[Whole, ...], bits("ids of samples that nobody reads, as if they were not there")] = ()
    replicas: Annotated[
        Amount | None,
        cost("between comparisons of weights and optimizer state over ranks, and at every commit; null: none"),
    ] = None
    recompute: Annotated[
        Amount | None,
        cost("between steps of which each rank computes a micro-batch of the rank before it again; null: none"),
    ] = None

    @property
    def skips(self) -> bool:
        """Whether a step may be left out on account of its numbers."""
        return self.nonfinite == "skip" or (self.spike is not None and self.spike.action == "skip")

    @property
    def undoes(self) -> bool:
        """Whether a step may be undone, with those before it."""
        return self.nonfinite == "rollback" or (self.spike is not None and self.spike.action == "rollback")

    @property
    def listed(self) -> list[tuple[int, int]]:
        """The first and last of each stretch of steps that are not to be made."""
        parts = [str(step).partition("-") for step in self.skip]
        return [(int(first), int(last or first)) for first, _, last in parts]

    def __post_init__(self) -> None:
        for first, last in self.listed:
            if first > last:
                raise ValueError(f"skip: {first}-{last} ends before it begins")
        if self.rollback != Rollback() and not self.undoes:
            raise ValueError("rollback: nothing goes back without nonfinite: rollback or spike: {action: rollback}")


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
    stall: Annotated[
        Duration, nothing("seconds, or such as 30m, for which the run directory may take nothing; then it ends with 74")
    ] = "30m"


@dataclass(frozen=True, kw_only=True)
class Telemetry(Settings):
    """What the ledger is told about the processes, and when Python collects its garbage."""

    every: Annotated[Amount | None, cost("between records of memory, time by phase and slowest rank; null: none")] = (
        _EVERY
    )
    gc: Annotated[
        Amount | None, cost("between collections of garbage, on all ranks alike; null: whenever Python does it")
    ] = None
    plan: Annotated[
        Duration | None,
        cost("how long a run must still take for its plan to be made beside it; null: it never is", later=True),
    ] = "60s"


@dataclass(frozen=True, kw_only=True)
class Profile(Settings):
    """Steps that torch's profiler watches."""

    start: Annotated[Count, cost("the first step")]
    steps: Annotated[Count, cost("how many steps")] = 3
    ranks: Annotated[tuple[Whole, ...], MinLen(1), cost("on which ranks")] = (0,)
