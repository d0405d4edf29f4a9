"""Sums without rounding."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.tasks.ranking.sums import ExactSums

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1)
PAIRS = st.lists(st.tuples(NUMBERS, st.floats(0, 1e9)), min_size=1, max_size=40)


def summed(numbers, weights, cuts=()):
    total = ExactSums(2)
    for part, counted in zip(np.split(numbers, cuts), np.split(weights, cuts), strict=True):
        lane = ExactSums(2)
        lane.add(part, counted)
        total.merge(json.loads(json.dumps(lane.state())))  # as it comes from another process
    return total


@given(
    st.lists(st.tuples(NUMBERS, st.floats(0, 1e9)), min_size=1, max_size=40), st.lists(st.integers(0, 40)), st.randoms()
)
def test_neither_order_nor_parts_change_a_bit_and_only_the_end_is_rounded(pairs, cuts, random):
    numbers, weights = np.array(pairs).T
    found = summed(numbers, weights)
    order = random.sample(range(len(pairs)), len(pairs))
    assert summed(numbers[order], weights[order], sorted(cuts)).state() == found.state()
    whole = sum(map(Fraction, weights.tolist()))
    if not whole:
        assert math.isnan(found.ratio(0, 1))
        return
    wanted = sum(map(Fraction, numbers.tolist())) / whole
    if abs(wanted) < 1e300:
        assert found.ratio(0, 1) == float(wanted)


@pytest.mark.parametrize(("odd", "wanted"), [(math.inf, math.inf), (-math.inf, -math.inf), (math.nan, math.nan)])
def test_what_is_not_finite_is_told_as_such(odd, wanted):
    found = summed(np.array([1.0, odd]), np.ones(2), [1]).ratio(0, 1)
    assert found == wanted or (math.isnan(found) and math.isnan(wanted))


def test_many_numbers_do_not_overflow():
    found = summed(np.full(300_000, 0.1), np.ones(300_000))
    assert found.ratio(0, 1) == 0.1
