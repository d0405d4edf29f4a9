import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from drivetrain.optim.recipe import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    InverseSqrt,
    Linear,
    Milestone,
    Plateau,
    Polynomial,
    StepSchedule,
    WarmupStableDecay,
    WeightDecaySchedule,
)
from drivetrain.optim.schedules import Horizon, Span, build_decay, build_factor, cosine
from drivetrain.optim.score_history import ScoreHistory
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from spec.test_batches import scale_of

UNIT = Scale(Batches(1))
SCALE = Scale(Batches(8), tokens=16, epoch=400)
BUDGET = 4000
UNITS = ("steps", "samples", "tokens", "epochs")
SHAPES = ("linear", "cosine", "sqrt", "exponential")


def amount(samples, unit="samples"):
    of = {"steps": samples // 8, "samples": samples, "tokens": samples * 16, "epochs": samples / 400}
    return Amount(**{unit: of[unit]})


def milestones(*pairs, unit="samples"):
    return tuple(Milestone(at=amount(samples, unit), factor=factor) for samples, factor in pairs)


def half(top, floor, share):
    return floor + (top - floor) * (1 + math.cos(math.pi * share)) / 2


CASES = {
    "constant": (lambda u: Constant(warmup=amount(400, u)), {1: 1 / 400, 100: 0.25, 2000: 1, 4000: 1, 9999: 1}),
    "linear": (lambda u: Linear(warmup=amount(400, u), floor=0.1), {200: 0.5, 2200: 0.55, 4000: 0.1, 9999: 0.1}),
    "linear, length": (
        lambda u: Linear(warmup=amount(400, u), floor=0.1, length=amount(2000, u)),
        {1200: 0.55, 2000: 0.1, 4000: 0.1},
    ),
    "cosine": (
        lambda u: Cosine(warmup=amount(400, u), floor=0.1),
        {200: 0.5, 1300: half(1, 0.1, 0.25), 2200: 0.55, 4000: 0.1, 9999: 0.1},
    ),
    "polynomial": (
        lambda u: Polynomial(warmup=amount(400, u), floor=0.1, power=3),
        {200: 0.5, 2200: 0.1 + 0.9 / 8, 4000: 0.1, 9999: 0.1},
    ),
    **{
        f"wsd, {shape}": (
            lambda u, shape=shape: WarmupStableDecay(
                warmup=amount(400, u), floor=0.25, decay=amount(1200, u), shape=shape
            ),
            {200: 0.5, 1600: 1, 2800: 1, 3100: quarter, 4000: 0.25, 9999: 0.25},
        )
        for shape, quarter in {
            "linear": 1 - 0.75 / 4,
            "cosine": half(1, 0.25, 0.25),
            "sqrt": 1 - 0.75 / 2,
            "exponential": 0.25**0.25,
        }.items()
    },
    "cosine_restarts": (
        lambda u: CosineRestarts(warmup=amount(400, u), floor=0.1, period=amount(800, u), multiplier=2, decay=0.5),
        {
            200: 0.5,
            800: 0.55,
            1200: 0.1,
            1201: half(0.5, 0.1, 1 / 1600),
            2000: 0.3,
            2800: 0.1,
            2801: half(0.25, 0.1, 1 / 3200),
            4400: 0.175,
            6000: 0.1,
        },
    ),
    "cosine_restarts, equal": (
        lambda u: CosineRestarts(warmup=amount(400, u), period=amount(800, u)),
        {800: 0.5, 1200: 0, 1600: 0.5, 2000: 0, 2001: half(1, 0, 1 / 800)},
    ),
    "inverse_sqrt": (lambda u: InverseSqrt(warmup=amount(400, u)), {200: 0.5, 1600: 0.5, 3600: 1 / 3, 40000: 0.1}),
    "inverse_sqrt, timescale": (
        lambda u: InverseSqrt(warmup=amount(400, u), timescale=amount(1200, u), floor=0.25),
        {1600: math.sqrt(0.5), 4000: 0.5, 10**6: 0.25},
    ),
    "exponential": (
        lambda u: Exponential(warmup=amount(400, u), rate=0.5, every=amount(600, u), floor=0.01),
        {200: 0.5, 1000: 0.5, 1300: 0.5**1.5, 1600: 0.25, 99999: 0.01},
    ),
    "exponential, staircase": (
        lambda u: Exponential(warmup=amount(400, u), rate=0.5, every=amount(600, u), staircase=True),
        {200: 0.5, 1000: 1, 1001: 0.5, 1600: 0.5, 1601: 0.25},
    ),
    "steps": (
        lambda u: StepSchedule(warmup=amount(400, u), milestones=milestones((1000, 0.5), (2000, 0.1), unit=u)),
        {200: 0.5, 1000: 1, 1001: 0.5, 2000: 0.5, 2001: 0.1, 9999: 0.1},
    ),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("case", CASES)
def test_each_schedule_is_its_closed_form_at_its_landmarks_in_every_unit(case, unit):
    build, expected = CASES[case]
    factor = build_factor(build(unit), Horizon(BUDGET, SCALE))
    assert factor(0) == 0
    assert factor(400) == pytest.approx(1, abs=1e-15)
    for position, value in expected.items():
        assert factor(position) == pytest.approx(value, abs=1e-12), position


@pytest.mark.parametrize("case", CASES)
def test_no_warmup_begins_at_the_peak(case):
    settings = CASES[case][0]("samples")
    without = {name: value for name, value in vars(settings).items() if name != "warmup"}
    if case == "inverse_sqrt":
        without["timescale"] = amount(400)
    assert build_factor(type(settings)(**without), Horizon(BUDGET, SCALE))(0) == pytest.approx(1)


@given(st.integers(0, 999), st.integers(0, 2000), st.floats(0, 1))
def test_cosine_is_its_closed_form(warmup, position, floor):
    factor = cosine(Cosine(floor=floor), Span(warmup, 1000, Horizon(1000, UNIT)))(position)
    rise = min(1, position / warmup) if warmup else 1
    progress = min(1, max(0, (position - warmup) / (1000 - warmup)))
    assert factor == pytest.approx(rise * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))))


def lengths(low=1, high=500):
    return st.builds(amount, st.integers(low, high))


@st.composite
def schedules(draw):
    """Any schedule whose warm-up and decay fit into 1000 samples."""
    kind = draw(
        st.sampled_from(
            [
                Constant,
                Linear,
                Cosine,
                Polynomial,
                WarmupStableDecay,
                CosineRestarts,
                InverseSqrt,
                Exponential,
                StepSchedule,
            ]
        )
    )
    floor = draw(st.floats(0.01, 1))
    fields = {
        Constant: {},
        Linear: {"floor": floor, "length": draw(st.none() | lengths(600, 900))},
        Cosine: {"floor": floor, "length": draw(st.none() | lengths(600, 900))},
        Polynomial: {"floor": floor, "power": draw(st.floats(0.1, 5))},
        WarmupStableDecay: {"floor": floor, "decay": draw(lengths()), "shape": draw(st.sampled_from(SHAPES))},
        CosineRestarts: {
            "floor": floor,
            "period": draw(lengths()),
            "multiplier": draw(st.integers(1, 3)),
            "decay": draw(st.floats(0.1, 1)),
        },
        InverseSqrt: {"floor": floor, "timescale": draw(lengths())},
        Exponential: {
            "floor": floor,
            "rate": draw(st.floats(0.01, 1)),
            "every": draw(lengths()),
            "staircase": draw(st.booleans()),
        },
        StepSchedule: {"milestones": milestones((500, 0.5), (700, 0.4), (900, 0.1))},
    }
    return kind(warmup=draw(st.none() | lengths()), **fields[kind])


@given(schedules(), st.integers(0, 5000))
def test_the_factor_is_between_the_floor_and_one_and_the_warmup_is_below(settings, position):
    factor = build_factor(settings, Horizon(1000, UNIT))(position)
    rise = min(1, position / settings.warmup.samples) if settings.warmup else 1
    assert getattr(settings, "floor", 0) * rise - 1e-12 <= factor <= rise + 1e-12


@given(schedules(), st.integers(0, 5000), st.integers(0, 500))
def test_the_factor_does_not_rise_after_the_warmup_but_for_restarts(settings, position, further):
    factor = build_factor(settings, Horizon(1000, UNIT))
    start = (settings.warmup.samples if settings.warmup else 0) + position
    if not isinstance(settings, CosineRestarts):
        assert factor(start + further) <= factor(start) + 1e-12


@given(schedules())
def test_the_peak_is_reached_at_the_end_of_the_warmup_without_a_jump(settings):
    factor = build_factor(settings, Horizon(1000, UNIT))
    warmup = settings.warmup.samples if settings.warmup else 0
    assert factor(warmup) == pytest.approx(1)
    if warmup:
        assert factor(warmup - 1) == pytest.approx((warmup - 1) / warmup)


@given(schedules(), st.lists(st.integers(0, 5000), min_size=1))
def test_the_factor_is_a_function_of_the_position_alone(settings, positions):
    used = build_factor(settings, Horizon(1000, UNIT))
    seen = {position: used(position) for position in positions}
    fresh = build_factor(settings, Horizon(1000, UNIT))
    assert all(fresh(position) == value for position, value in reversed(seen.items()))


@given(schedules(), st.integers(1000, 10**6), st.integers(0, 5000))
def test_another_budget_changes_nothing_where_lengths_are_given(settings, budget, position):
    if hasattr(settings, "length") and settings.length is None:
        settings = type(settings)(**{**vars(settings), "length": amount(1000)})
    assert build_factor(settings, Horizon(1000, UNIT))(position) == build_factor(settings, Horizon(budget, UNIT))(
        position
    )


@given(st.integers(1000, 10**6), st.integers(0, 800))
def test_a_longer_budget_changes_nothing_before_the_decay_of_wsd(budget, position):
    settings = WarmupStableDecay(warmup=amount(100), decay=amount(200))
    assert build_factor(settings, Horizon(1000, UNIT))(position) == build_factor(settings, Horizon(budget, UNIT))(
        position
    )


@pytest.mark.parametrize(
    ("settings", "theirs", "skipped"),
    [
        (
            Exponential(rate=0.5, every=Amount(steps=3), staircase=True),
            lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
            None,
        ),
        (
            StepSchedule(
                milestones=(Milestone(at=Amount(steps=3), factor=0.1), Milestone(at=Amount(steps=7), factor=0.01)),
            ),
            lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 7], 0.1),
            None,
        ),
        (
            Polynomial(power=3, length=Amount(steps=20)),
            lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 20, 3),
            (),
        ),
        (
            CosineRestarts(period=Amount(steps=5), multiplier=2),
            lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5, 2),
            (5, 15),  # torch has restarted here, we are at the floor
        ),
    ],
    ids=["StepLR", "MultiStepLR", "PolynomialLR", "CosineAnnealingWarmRestarts"],
)
def test_the_factors_are_those_of_torch(settings, theirs, skipped):
    """torch's stairs hold from a step's start; its curves are at 0 for the first step, ours at 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, factor = theirs(optimizer), build_factor(settings, Horizon(160, SCALE))
    for epoch in range(20):
        position = 8 * (epoch + 1 if skipped is None else epoch)
        if epoch not in (skipped or ()):
            assert factor(position) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12), epoch
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Constant(warmup=amount(4000)), "schedule.warmup: 4000 samples, but the budget is 4000"),
        (Linear(warmup=amount(800), length=Amount(steps=100)), "but the length is 800"),
        (WarmupStableDecay(warmup=amount(400), decay=Amount(epochs=9.5)), "400 samples of warm-up and 3800 of decay"),
        (StepSchedule(milestones=milestones((800, 0.5)) + milestones((800, 0.1), unit="steps")), "not in order"),
    ],
)
def test_landmarks_that_are_not_in_order_are_refused(settings, words):
    with pytest.raises(Failure, match=words) as caught:
        build_factor(settings, Horizon(BUDGET, SCALE))
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_a_schedule_with_a_length_may_be_longer_than_the_budget():
    factor = build_factor(Linear(warmup=amount(800), length=amount(1600)), Horizon(400, SCALE))
    assert factor(400) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (WarmupStableDecay, {"decay": amount(8), "shape": "exponential"}, "floor above zero"),
        (InverseSqrt, {}, "warm-up or a timescale"),
        (Linear, {"warmup_from": 0.5}, "warmup_from is where a warm-up begins"),
        (Linear, {"warmup": amount(8), "read_at": "step_start"}, "begins with steps that move nothing"),
        (Exponential, {"rate": 0.5, "every": amount(8), "warmup": amount(8), "read_at": "epoch_start"}, "move nothing"),
    ],
)
def test_settings_without_a_meaning_are_refused(kind, settings, words):
    with pytest.raises(ValueError, match=words):
        kind(**settings)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", {0: 0.5, 500: 0.875, 1000: 1.25, 2000: 2, 9999: 2}),
        ("cosine", {0: 0.5, 500: half(0.5, 2, 0.25), 1000: 1.25, 2000: 2, 9999: 2}),
    ],
)
def test_the_weight_decay_goes_from_start_to_end(kind, expected, unit):
    settings = WeightDecaySchedule(kind=kind, start=0.5, end=2, length=amount(2000, unit))
    factor = build_decay(settings, Horizon(BUDGET, SCALE))
    for position, value in expected.items():
        assert factor(position) == pytest.approx(value)


def test_the_weight_decay_ends_with_the_budget_or_is_constant():
    assert build_decay(WeightDecaySchedule(end=0.0), Horizon(BUDGET, SCALE))(BUDGET) == 0
    assert build_decay(None, Horizon(BUDGET, SCALE))(123) == 1


def test_galore_trainer_2_a_cosine_with_restarts_begins_again_at_its_peak():
    restarts = "{kind: cosine_restarts, warmup: {steps: 1k}, floor: 0.1, period: {steps: 3k}}"
    recipe = load("llama-60m", [f"schedule={restarts}"]).recipe
    factor = build_factor(recipe.schedule, Horizon(scale_of(recipe).batches.samples(10_000), scale_of(recipe)))
    at = {step: factor(scale_of(recipe).batches.samples(step)) for step in (1000, 4000, 4001, 7000)}
    assert at == pytest.approx({1000: 1.0, 4000: 0.1, 4001: 1.0, 7000: 0.1}, abs=1e-5)


def scored(scores):
    """A plateau's factor after these scores, one for each step of eight samples."""
    history = ScoreHistory()
    for step, score in enumerate(scores, 1):
        history.add(step, {"a": {"loss": score}})
    return Horizon(8000, SCALE, history), 8 * (len(scores) + 1)


@given(
    st.lists(st.floats(-2, 2) | st.sampled_from([0.0, 1.0, math.inf]), max_size=30),
    st.sampled_from(["min", "max"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_a_plateau_falls_where_torchs_does(scores, mode, patience, cooldown, threshold):
    """But for scores below zero: torch asks them to become worse by the threshold."""
    scores = [abs(score) for score in scores]
    settings = Plateau(
        metric="a/loss",
        every=Amount(steps=1),
        mode=mode,
        factor=0.5,
        patience=patience,
        threshold=threshold,
        cooldown=cooldown,
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = lr_scheduler.ReduceLROnPlateau(
        optimizer, mode=mode, factor=0.5, patience=patience, threshold=threshold, cooldown=cooldown, eps=0.0
    )
    for score in scores:
        theirs.step(score)
    horizon, position = scored(scores)
    assert build_factor(settings, horizon)(position) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_a_plateau_knows_nothing_of_its_own_step_and_forgets_what_was_undone():
    settings = Plateau(metric="a/loss", every=Amount(steps=2), patience=0, factor=0.5)
    horizon, _ = scored([1, 1, 1, 1, 1, 1])  # of which those after steps 2, 4 and 6 count
    factor = build_factor(settings, horizon)
    assert [factor(8 * step) for step in range(1, 9)] == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    horizon.scores.forget_after(4)
    assert factor(64) == 0.5


def test_a_network_that_waits_follows_the_whole_runs_scores():
    settings = Plateau(metric="a/loss", every=Amount(steps=2), patience=0, factor=0.5)
    horizon, _ = scored([1, 1, 1, 1])
    factor = build_factor(settings, horizon.since(3))
    assert [factor(8 * step) for step in range(1, 4)] == [1, 0.5, 0.5]


# What recommenders are trained with: rates as torch and TorchEasyRec give them, which read a step at its start, or once
# in an epoch. Each formula is of t, the steps or epochs before the step; its numbers at a base of 0.1 were run there.
SERIES = {
    "exponential": (
        Exponential(rate=0.5, every=Amount(steps=2), staircase=True, read_at="step_start"),
        [0.1, 0.1, 0.05, 0.05, 0.025],
    ),
    "steps": (
        StepSchedule(milestones=(Milestone(at=Amount(steps=3), factor=0.5), Milestone(at=Amount(steps=6), factor=0.1))),
        [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.01],
    ),
    "cosine": (  # theirs has a 0 before: a first step that moves nothing
        Cosine(warmup=Amount(steps=2), length=Amount(steps=6), floor=0.1),
        [0.05, 0.1, 0.0868, 0.055, 0.0232, 0.01, 0.01],
    ),
    "cosine, warmed up from a rate": (
        Cosine(warmup=Amount(steps=2), warmup_from=0.5, length=Amount(steps=6), floor=0.1, read_at="step_start"),
        [0.05, 0.075, 0.1, 0.0868, 0.055, 0.0232, 0.01, 0.01],
    ),
    "cosine_restarts": (
        CosineRestarts(period=Amount(steps=2), multiplier=2, read_at="step_start"),
        [0.1, 0.05, 0.1, 0.0854, 0.05, 0.0146, 0.1],
    ),
}


@pytest.mark.parametrize("case", SERIES)
def test_a_schedule_of_recommenders_is_the_series_that_was_run(case):
    settings, expected = SERIES[case]
    factor = build_factor(settings, Horizon(BUDGET, SCALE))
    assert [0.1 * factor(8 * step) for step in range(1, len(expected) + 1)] == pytest.approx(expected, abs=5e-5)


def by(unit, count):
    return Amount(**{unit: count})


@st.composite
def recommenders(draw):
    """A schedule in steps or epochs, and its rate at t of them, at a base of 1; with a warm-up from a rate or none."""
    unit = draw(st.sampled_from(["steps", "epochs"]))
    warmup, first, least = draw(st.integers(0, 9)), draw(st.floats(0.01, 1)), draw(st.floats(0, 1))
    size, rate, most = draw(st.integers(1, 9)), draw(st.floats(0.1, 1)), draw(st.integers(1, 3))
    shared = {"read_at": "step_start" if unit == "steps" else "epoch_start"}
    if warmup:
        shared |= {"warmup": by(unit, warmup), "warmup_from": first}

    def rising(rest):
        return lambda t: first + (1 - first) * t / warmup if t < warmup else rest(t - warmup)

    def restarting(t):
        length = size
        while t >= length:
            t, length = t - length, length * most
        return half(1, least, t / length)

    marks = sorted({draw(st.integers(1, 30)), draw(st.integers(31, 60))})
    choices = {
        Constant: ({}, lambda t: 1.0),
        Exponential: (
            {"rate": rate, "every": by(unit, size), "staircase": True, "floor": least},
            lambda t: max(least, rate ** (t // size)),
        ),
        StepSchedule: (
            {"milestones": tuple([Milestone(at=by(unit, mark), factor=1 / (2 + mark)) for mark in marks])},
            # From the run's start, and not the warm-up's end.
            lambda t: [1.0, *(1 / (2 + mark) for mark in marks)][sum(mark <= t + warmup for mark in marks)],
        ),
        Cosine: (
            {"length": by(unit, warmup + size), "floor": least},
            lambda t: half(1, least, min(1, t / size)),
        ),
        CosineRestarts: ({"period": by(unit, size), "multiplier": most, "floor": least}, restarting),
    }
    kind = draw(st.sampled_from(list(choices)))
    settings, after = choices[kind]
    if kind is StepSchedule:  # the warm-up's rate is a factor on what the milestones say
        return kind(**settings, **shared), unit, lambda t: rising(lambda _: 1.0)(t) * after(t - warmup)
    return kind(**settings, **shared), unit, rising(after)


@given(recommenders(), st.integers(1, 9), st.integers(9, 40), st.integers(1, 400))
def test_a_schedule_of_recommenders_is_its_closed_form_by_step_and_by_epoch(case, size, epoch, step):
    """An epoch need be no whole number of steps: a step is of the epoch that it begins in."""
    settings, unit, rate = case
    factor = build_factor(settings, Horizon(10**6, Scale(Batches(size), epoch=epoch)))
    start = size * (step - 1)
    assert factor(start + size) == pytest.approx(rate(step - 1 if unit == "steps" else start // epoch), abs=1e-12)


def test_a_restart_is_at_the_peak_wherever_it_falls():
    """A floor of a logarithm puts t = 1210 of periods 10, 30, 90, 270, 810 at the end of the last of them."""
    factor = build_factor(
        CosineRestarts(period=Amount(steps=10), multiplier=3, read_at="step_start"), Horizon(10**6, UNIT)
    )
    peaks = [step - 1 for step in range(1, 1300) if factor(step) == 1.0]
    assert peaks == [0, 10, 40, 130, 400, 1210]


@given(schedules())
def test_no_schedule_wastes_its_first_step(settings):
    assert build_factor(settings, Horizon(1000, UNIT))(1) > 0


def test_a_start_is_that_of_the_step_also_where_the_batch_grows():
    batches = Batches(2, (Change(3, 5),))
    factor = build_factor(
        Linear(length=Amount(samples=100), read_at="step_start"), Horizon(100, Scale(batches, epoch=7))
    )
    ends = [batches.span(step)[1] for step in range(1, 6)]
    assert [100 * (1 - factor(end)) for end in ends] == pytest.approx([0, 2, 4, 6, 11])


def test_epochs_that_nobody_can_count_are_no_place_to_read_a_schedule_at():
    with pytest.raises(Failure, match=r"schedule\.read_at: epoch_start, and nobody knows") as caught:
        build_factor(Cosine(read_at="epoch_start"), Horizon(1000, UNIT))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
