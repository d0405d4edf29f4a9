"""Learning-rate and weight-decay schedules: pure functions of the samples consumed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from drivetrain.optim.recipe import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    InverseSqrt,
    Linear,
    Plateau,
    Polynomial,
    ReadAt,
    Schedule,
    StepSchedule,
    WarmupStableDecay,
    WeightDecaySchedule,
)
from drivetrain.optim.score_history import ScoreHistory, ScoresByPlace
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported

Factor = Callable[[int], float]
"""From samples consumed, this step's included, to a factor on the peak learning rate."""


@dataclass(frozen=True)
class Horizon:
    """What schedules are laid along: the run's length in samples, what turns amounts into samples, the scores so far.

    They begin after the first `before` samples of the run, and `total` is counted from there; scores are the whole
    run's, and so is `whole`, by which it counts steps.
    """

    total: int
    scale: Scale
    scores: ScoreHistory = field(default_factory=ScoreHistory)
    before: int = 0
    whole: Scale | None = None

    def since(self, wait: int) -> Horizon:
        """That of a network which stands still for the first `wait` steps."""
        # In samples: a ramp may have made the first steps smaller.
        before = self.scale.batches.samples(wait)
        scale = replace(self.scale, batches=self.scale.batches.since(wait))
        return Horizon(self.total - before, scale, self.scores, before, self.scale)

    def scores_before(self, position: int, every: Amount) -> ScoresByPlace:
        """What was scored before the step that ends at this position, at multiples of an interval."""
        return self.scores.before(self.before + position, every, self.whole or self.scale)


@dataclass(frozen=True)
class Span:
    """Where a schedule's landmarks lie, in samples, along its `horizon`; where its warm-up begins, as a fraction of the
    peak; and which place a step reads. Positions are those at which steps end."""

    warmup: int
    total: int
    horizon: Horizon
    warmup_from: float = 0.0
    read_at: ReadAt = "step_end"

    @property
    def scale(self) -> Scale:
        """What turns its amounts into samples."""
        return self.horizon.scale

    def scores(self, every: Amount, position: int) -> ScoresByPlace:
        """What was scored before the step that ends at this position."""
        return self.horizon.scores_before(position, every)

    def samples(self, amount: Amount) -> int:
        """An amount in samples."""
        return amount.samples_at(self.scale)

    def place(self, position: int) -> int:
        """The place that the step reads, in samples: its own end or start, or the start of the epoch it begins in."""
        if self.read_at == "step_end":
            return position
        batches = self.scale.batches
        start = batches.samples(max(0, batches.steps(position) - 1))
        if self.read_at == "step_start":
            return start
        assert self.scale.epoch is not None, "build_factor sees to that"
        return start - start % self.scale.epoch

    def sample(self, position: int) -> int:
        """The sample that says which stretch, cycle or milestone is the step's: the last one before the place where it
        ends, the first one after the place where it or its epoch begins."""
        place = self.place(position)
        return place - 1 if self.read_at == "step_end" else place

    def rise(self, position: int) -> float:
        """Warm-up: a straight line from `warmup_from`, at most 1."""
        if not self.warmup:
            return 1.0
        share = min(1.0, self.place(position) / self.warmup)
        return self.warmup_from + (1.0 - self.warmup_from) * share if self.warmup_from else share

    def after(self, position: int) -> int:
        """How many samples came after the warm-up."""
        return max(0, self.place(position) - self.warmup)

    def sample_after(self, position: int) -> int:
        """`sample`, counted from the end of the warm-up; 0 before."""
        return max(0, self.sample(position) - self.warmup)

    def progress(self, position: int) -> float:
        """How much of the way from the warm-up's end to the schedule's end is behind: 0 to 1."""
        place = self.place(position)
        if place >= self.total:
            return 1.0
        return max(0.0, (place - self.warmup) / (self.total - self.warmup))


def build_factor(settings: Schedule, horizon: Horizon) -> Factor:
    """A schedule's factor. Its end is its `length` where it gives one, otherwise that of the horizon.

    Raises Failure(78) where its landmarks are not in order, or it is read by epochs of data that have none.
    """
    warmup = settings.warmup.samples_at(horizon.scale) if settings.warmup else 0
    total, what = horizon.total, "budget"
    if settings.end:
        total, what = settings.end.samples_at(horizon.scale), "length"
    if warmup >= total and warmup > 0:
        raise Failure(
            Exit.BAD_RECIPE,
            f"schedule.warmup: {warmup} samples, but the {what} is {total}",
            f"shorten the warm-up or lengthen the {what}",
        )
    # Here, before the first step, and not where a step would ask for it.
    if settings.read_at == "epoch_start" and horizon.scale.epoch is None:
        cause = "schedule.read_at: epoch_start, and nobody knows how many samples an epoch of these data has"
        raise Failure(Exit.BAD_RECIPE, cause, "read it at step_end or step_start")
    span = Span(warmup, total, horizon, settings.warmup_from, settings.read_at)
    return imported(settings.factory)(settings, span)


def build_decay(settings: WeightDecaySchedule | None, horizon: Horizon) -> Factor:
    """The factor on weight decays: from `start` to `end`, as Megatron-LM's `get_wd`.

    linear: start + (end - start) * progress. cosine: start + (end - start) * (1 - cos(pi * progress)) / 2.
    """
    if settings is None:
        return lambda position: 1.0
    total = settings.length.samples_at(horizon.scale) if settings.length else horizon.total
    span = Span(0, total, horizon)
    change = settings.end - settings.start
    if settings.kind == "linear":
        return lambda position: settings.start + change * span.progress(position)
    return lambda position: settings.start + change * (1.0 - math.cos(math.pi * span.progress(position))) / 2.0


def constant(settings: Constant, span: Span) -> Factor:
    """1 after the warm-up."""
    return span.rise


def linear(settings: Linear, span: Span) -> Factor:
    """1 - (1 - floor) * progress, after the warm-up."""
    fall = 1.0 - settings.floor
    return lambda position: span.rise(position) * (1.0 - fall * span.progress(position))


def cosine(settings: Cosine, span: Span) -> Factor:
    """floor + (1 - floor) * (1 + cos(pi * progress)) / 2, after the warm-up (arXiv 1608.03983, equation 5)."""
    return lambda position: span.rise(position) * _half_cosine(span.progress(position), 1.0, settings.floor)


def polynomial(settings: Polynomial, span: Span) -> Factor:
    """floor + (1 - floor) * (1 - progress) ** power, after the warm-up."""
    fall = 1.0 - settings.floor
    return lambda position: (
        span.rise(position) * (settings.floor + fall * (1.0 - span.progress(position)) ** settings.power)
    )


def warmup_stable_decay(settings: WarmupStableDecay, span: Span) -> Factor:
    """1 between the warm-up and the last `decay` samples, then f(share of those that is behind).

    arXiv 2404.06395, section 4.2. Its f halves the rate at a fixed interval: `exponential` is that with
    floor = 0.5 ** (decay / interval). `sqrt` is the 1-sqrt of arXiv 2405.18392. Raises Failure(78) where
    warm-up and decay do not fit in.
    """
    shape, floor, decay = _SHAPES[settings.shape], settings.floor, span.samples(settings.decay)
    if span.warmup + decay > span.total:
        raise Failure(
            Exit.BAD_RECIPE,
            f"schedule.decay: {span.warmup} samples of warm-up and {decay} of decay, but it ends at {span.total}",
            "shorten them, or lengthen the schedule",
        )
    tail = replace(span, warmup=span.total - decay)
    return lambda position: span.rise(position) * shape(tail.progress(position), floor)


def _half_cosine(share: float, top: float, floor: float) -> float:
    """From top to floor, as the share goes from 0 to 1."""
    return floor + (top - floor) / 2.0 * (1.0 + math.cos(math.pi * share))


_SHAPES: dict[str, Callable[[float, float], float]] = {
    "linear": lambda share, floor: 1.0 - (1.0 - floor) * share,
    "cosine": lambda share, floor: _half_cosine(share, 1.0, floor),
    "sqrt": lambda share, floor: 1.0 - (1.0 - floor) * math.sqrt(share),
    "exponential": lambda share, floor: floor**share,
}
"""From the share of a decay that is behind, and the floor, to a factor between 1 and the floor."""


def cosine_restarts(settings: CosineRestarts, span: Span) -> Factor:
    """floor + (top - floor) * (1 + cos(pi * share)) / 2 in cycle i, after the warm-up (arXiv 1608.03983, equation 5).

    Cycle i is period * multiplier ** i samples long; its top is max(floor, decay ** i). A cycle's last step stands
    exactly at the floor.
    """
    period = span.samples(settings.period)

    def factor(position: int) -> float:
        cycle, start, length = _cycle(span.sample_after(position), period, settings.multiplier)
        top = max(settings.floor, settings.decay**cycle)
        return span.rise(position) * _half_cosine((span.after(position) - start) / length, top, settings.floor)

    return factor


def _cycle(sample: int, period: int, multiplier: int) -> tuple[int, int, int]:
    """The cycle that a sample after the warm-up is in: its number from 0, where it begins, and its length in samples.

    Whole numbers, counted up: a logarithm would put a sample where a cycle begins into the one before.
    """
    if multiplier == 1:
        cycle = sample // period
        return cycle, cycle * period, period
    cycle = start = 0
    while sample - start >= period:
        cycle, start, period = cycle + 1, start + period, period * multiplier
    return cycle, start, period


def inverse_sqrt(settings: InverseSqrt, span: Span) -> Factor:
    """sqrt(t / (t + samples after the warm-up)), at least the floor; t is the timescale, in samples.

    With t = warmup it is sqrt(warmup / position) (arXiv 1706.03762, equation 3, relative to its peak).
    """
    timescale = span.samples(settings.timescale) if settings.timescale else span.warmup
    return lambda position: (
        span.rise(position) * max(settings.floor, math.sqrt(timescale / (timescale + span.after(position))))
    )


def exponential(settings: Exponential, span: Span) -> Factor:
    """rate ** (samples after the warm-up / every), at least the floor.

    As a staircase the exponent is the number of whole stretches before this step's last sample.
    """
    every = span.samples(settings.every)

    def factor(position: int) -> float:
        stretches = span.after(position) / every
        if settings.staircase:
            # What counts are stretches before the last sample: a step that just fills one still has its factor.
            stretches = span.sample_after(position) // every
        return span.rise(position) * max(settings.floor, settings.rate**stretches)

    return factor


def steps(settings: StepSchedule, span: Span) -> Factor:
    """The factor of the last milestone that lies before the position; 1 before the first. Failure(78) without order."""
    starts = [span.samples(milestone.at) for milestone in settings.milestones]
    if any(first >= second for first, second in pairwise(starts)):
        raise Failure(
            Exit.BAD_RECIPE, f"schedule.milestones: not in order: they lie at {starts} samples", "put them in order"
        )
    factors = [1.0]
    factors.extend(milestone.factor for milestone in settings.milestones)
    return lambda position: span.rise(position) * factors[bisect_right(starts, span.sample(position))]


def plateau(settings: Plateau, span: Span) -> Factor:
    """factor ** falls, at least the floor, after the warm-up; falls as torch's `ReduceLROnPlateau` counts them, with a
    relative threshold. A score that is no number is no better."""
    counted: tuple[ScoresByPlace, float] = {}, 1.0

    def factor(position: int) -> float:
        nonlocal counted
        told = span.scores(settings.every, position)
        if told is not counted[0]:
            counted = told, fallen(told)
        return span.rise(position) * counted[1]

    def fallen(told: ScoresByPlace) -> float:
        if told and settings.metric not in told:
            cause = f"schedule.metric: {settings.metric} is nothing that is scored; there are {', '.join(told)}"
            raise Failure(Exit.BAD_RECIPE, cause, "name one of them")
        scores = [score for _, score in told.get(settings.metric, [])]
        return max(settings.floor, settings.factor ** _falls(scores, settings))

    return factor


def _falls(scores: Sequence[float], settings: Plateau) -> int:
    """How often the rate has been lowered after these scores."""
    sign = 1.0 if settings.mode == "min" else -1.0
    best, bad, rests, falls = math.inf, 0, 0, 0
    for score in scores:
        value = sign * score
        # With infinity for a best one there is no share of it.
        if value < best - (settings.threshold * abs(best) if math.isfinite(best) else 0.0):
            best, bad = value, 0
        else:
            bad += 1
        if rests:
            rests, bad = rests - 1, 0
        if bad > settings.patience:
            falls, bad, rests = falls + 1, 0, settings.cooldown
    return falls
