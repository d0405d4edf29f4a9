"""Settings of schedules: of the learning rate, and of weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le, Lt, MinLen
from pydantic import Field

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Component, Count, Fraction, NonNegative, Positive, Settings, Whole, bits

Ratio = Annotated[float, Gt(0), Le(1)]
ReadAt = Literal["step_end", "step_start", "epoch_start"]


@dataclass(frozen=True, kw_only=True)
class Schedule(Component):
    """What every schedule has: a factor on the peak learning rate, as a function of the samples consumed.

    The rate of a step is the factor at the samples consumed *with* that step, so no step is wasted on a rate of zero;
    `read_at` takes the samples before it, or before its epoch, as others do.
    """

    warmup: Annotated[Amount | None, bits("linear rise to the peak; null: none")] = None
    warmup_from: Annotated[Fraction, bits("where the warm-up begins, as a fraction of the peak", later=True)] = 0.0
    read_at: Annotated[
        ReadAt, bits("which place of the schedule is a step's: its end, its start, or its epoch's start", later=True)
    ] = "step_end"

    def __post_init__(self) -> None:
        if self.warmup is None and self.warmup_from:
            raise ValueError("warmup_from is where a warm-up begins: give one, or leave it out")
        # At its end, the first step has a part of the peak already; at its start it would have none.
        if self.warmup is not None and not self.warmup_from and self.read_at != "step_end":
            raise ValueError(
                f"a warm-up from zero that is read at {self.read_at} begins with steps that move nothing: "
                "give warmup_from, or leave read_at out"
            )

    @property
    def end(self) -> Amount | None:
        """Where it ends, from the run's start on; None: with the budget."""
        # `None` and not the budget: that may be extended on a resume, and the schedule then ends later, too.
        return None


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak, after the warm-up."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:constant"
    kind: Annotated[Literal["constant"], bits("constant after the warm-up")] = "constant"


@dataclass(frozen=True, kw_only=True)
class Decay(Schedule):
    """A fall from the peak to `floor` times the peak, where it stays."""

    floor: Annotated[Fraction, bits("where the decay ends, as a fraction of the peak")] = 0.0
    length: Annotated[Amount | None, bits("from the run's start to the decay's end; null: the budget")] = None

    @property
    def end(self) -> Amount | None:
        """Its `length`."""
        return self.length


@dataclass(frozen=True, kw_only=True)
class Linear(Decay):
    """A straight fall."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:linear"
    kind: Annotated[Literal["linear"], bits("linear decay")] = "linear"


@dataclass(frozen=True, kw_only=True)
class Cosine(Decay):
    """Half a cosine (Loshchilov & Hutter 2017, arXiv 1608.03983, without restarts)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:cosine"
    kind: Annotated[Literal["cosine"], bits("cosine decay")] = "cosine"


@dataclass(frozen=True, kw_only=True)
class Polynomial(Decay):
    """A power of what is left of the way."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:polynomial"
    kind: Annotated[Literal["polynomial"], bits("polynomial decay")] = "polynomial"
    power: Annotated[Positive, bits("exponent; 1: linear")] = 2.0


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(Decay):
    """The peak, then a decay in the last stretch (Hu et al. 2024, arXiv 2404.06395, section 4.2)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:warmup_stable_decay"
    kind: Annotated[Literal["wsd"], bits("warm-up, stable, decay")] = "wsd"
    decay: Annotated[Amount, bits("how long the decay at the end is")]
    shape: Annotated[
        Literal["linear", "cosine", "sqrt", "exponential"], bits("of the decay; exponential needs a floor above 0")
    ] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        # A fall by equal factors never comes to nothing.
        if self.shape == "exponential" and self.floor == 0:
            raise ValueError("an exponential decay needs a floor above zero")


@dataclass(frozen=True, kw_only=True)
class CosineRestarts(Schedule):
    """Half a cosine, again and again (Loshchilov & Hutter 2017, arXiv 1608.03983)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:cosine_restarts"
    kind: Annotated[Literal["cosine_restarts"], bits("cosine decay with warm restarts")] = "cosine_restarts"
    floor: Annotated[Fraction, bits("where each cycle ends, as a fraction of the peak")] = 0.0
    period: Annotated[Amount, bits("length of the first cycle, which begins after the warm-up")]
    multiplier: Annotated[Count, bits("each cycle is this many times as long as the one before")] = 1
    decay: Annotated[Ratio, bits("each cycle begins at this fraction of the one before, but not below the floor")] = 1.0


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """A fall with the square root of the samples, without an end (Vaswani et al. 2017, arXiv 1706.03762)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:inverse_sqrt"
    kind: Annotated[Literal["inverse_sqrt"], bits("inverse square root")] = "inverse_sqrt"
    floor: Annotated[Fraction, bits("the least factor")] = 0.0
    timescale: Annotated[
        Amount | None, bits("this long after the warm-up 1 / sqrt(2) of the peak is left; null: the warm-up's length")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # The fall is measured by one of the two: without a length nothing says how fast it is.
        if self.timescale is None and self.warmup is None:
            raise ValueError("inverse_sqrt needs a warm-up or a timescale")


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """The same factor for every stretch of the same length, without an end."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:exponential"
    kind: Annotated[Literal["exponential"], bits("exponential decay")] = "exponential"
    floor: Annotated[Fraction, bits("the least factor")] = 0.0
    rate: Annotated[Ratio, bits("factor of each stretch")]
    every: Annotated[Amount, bits("length of a stretch, counted from the end of the warm-up")]
    staircase: Annotated[bool, bits("fall at the end of each stretch only")] = False


@dataclass(frozen=True, kw_only=True)
class Milestone(Settings):
    """Where a new factor begins."""

    at: Annotated[Amount, bits("from the run's start; the first step that goes beyond it has the new factor")]
    factor: Annotated[Fraction, bits("of the peak (not of the factor before)")]


@dataclass(frozen=True, kw_only=True)
class StepSchedule(Schedule):
    """Factors set by hand."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:steps"
    kind: Annotated[Literal["steps"], bits("factors from milestones on")] = "steps"
    milestones: Annotated[tuple[Milestone, ...], MinLen(1), bits("in order; before the first: the peak")]


@dataclass(frozen=True, kw_only=True)
class Plateau(Schedule):
    """A smaller factor each time that a score has not become better for a while, as torch's `ReduceLROnPlateau`."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:plateau"
    kind: Annotated[Literal["plateau"], bits("lower whenever a score stays as it is")] = "plateau"
    metric: Annotated[str, bits("SET/METRIC of a validation set")]
    every: Annotated[Amount, bits("how often it is scored for this; other evaluations do not count")]
    mode: Annotated[Literal["min", "max"], bits("whether small or large scores are good")] = "min"
    factor: Annotated[float, Gt(0), Lt(1), bits("the rate is multiplied by this")] = 0.1
    patience: Annotated[Whole, bits("so many scores in a row may be no better; the next one lowers the rate")] = 10
    threshold: Annotated[NonNegative, bits("a score is better if it is so by this share of the best one")] = 1e-4
    cooldown: Annotated[Whole, bits("so many scores after a fall do not count")] = 0
    floor: Annotated[Fraction, bits("the least factor")] = 0.0

    @property
    def reads_scores(self) -> Amount:
        """As `every` says."""
        return self.every


AnySchedule = Annotated[
    Constant
    | Linear
    | Cosine
    | Polynomial
    | WarmupStableDecay
    | CosineRestarts
    | InverseSqrt
    | Exponential
    | Plateau
    | StepSchedule,
    Field(discriminator="kind"),
]
"""A schedule inside other settings, where its kind must be given."""


@dataclass(frozen=True, kw_only=True)
class WeightDecaySchedule(Settings):
    """A factor on every group's weight decay: `start` at the run's start, `end` at the end, then constant."""

    kind: Annotated[Literal["linear", "cosine"], bits("a straight line, or half a cosine")] = "linear"
    start: Annotated[NonNegative, bits("factor at the start")] = 1.0
    end: Annotated[NonNegative, bits("factor at the end")] = 0.0
    length: Annotated[Amount | None, bits("from the run's start to the end; null: the budget")] = None
