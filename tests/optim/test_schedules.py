import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.optim.recipe import Constant, Cosine, Linear
from drivetrain.optim.schedules import Span, constant, cosine, linear

FACTORS = {
    "constant": lambda span: constant(Constant(), span),
    "linear": lambda span: linear(Linear(floor=0.1), span),
    "cosine": lambda span: cosine(Cosine(floor=0.1), span),
}


@pytest.mark.parametrize("kind", FACTORS)
def test_rises_linearly_to_the_peak_at_the_end_of_the_warmup(kind):
    factor = FACTORS[kind](Span(warmup=100, total=1000))
    assert factor(0) == 0
    assert factor(25) == pytest.approx(0.25)
    assert factor(100) == 1


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_ends_exactly_at_the_floor_and_stays_there(kind):
    factor = FACTORS[kind](Span(warmup=100, total=1000))
    assert factor(1000) == pytest.approx(0.1, abs=1e-15)
    assert factor(5000) == factor(1000)


def test_constant_stays_at_the_peak():
    factor = FACTORS["constant"](Span(warmup=0, total=10))
    assert [factor(position) for position in (1, 5, 10, 99)] == [1, 1, 1, 1]


def test_linear_is_halfway_down_at_the_middle():
    assert linear(Linear(floor=0.2), Span(0, 1000))(500) == pytest.approx(0.6)


@given(st.integers(0, 999), st.integers(0, 2000), st.floats(0, 1))
def test_cosine_is_its_closed_form(warmup, position, floor):
    factor = cosine(Cosine(floor=floor), Span(warmup, 1000))(position)
    rise = min(1, position / warmup) if warmup else 1
    progress = min(1, max(0, (position - warmup) / (1000 - warmup)))
    assert factor == pytest.approx(rise * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))))


@given(st.sampled_from(sorted(FACTORS)), st.integers(0, 99), st.integers(1, 300))
def test_never_leaves_zero_to_one(kind, warmup, position):
    assert 0 <= FACTORS[kind](Span(warmup, 100))(position) <= 1
