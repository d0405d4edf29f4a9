"""A sum of squares that no order changes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engine.tables.squares import magnitudes_of, products_of, sum_of

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)
ROWS = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=40)


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_neither_order_nor_ranks_change_a_bit(rows, random, cut):
    whole = torch.tensor(rows)
    random.shuffle(rows)
    other = torch.tensor(rows)
    assert torch.equal(magnitudes_of([whole]), magnitudes_of([other[:cut]]) + magnitudes_of([other[cut:]]))


@given(ROWS)
def test_it_is_the_sum_within_23_bits(rows):
    gradients = torch.tensor(rows)
    wanted = math.fsum(torch.linalg.vector_norm(gradients, dim=1).double().square().tolist())
    assert sum_of(magnitudes_of([gradients])) == pytest.approx(wanted, rel=2**-23)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_number(bad):
    rows = torch.ones(5, 2)
    rows[3, 1] = bad
    assert math.isnan(sum_of(magnitudes_of([torch.ones(2, 2), rows])))


def test_no_row_is_zero():
    assert sum_of(magnitudes_of([])) == sum_of(magnitudes_of([torch.zeros(0, 4)])) == 0.0


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_products_of_two_gradients_have_a_sign_and_no_order_changes_a_bit(rows, random, cut):
    pairs = [(row, other) for row, other in zip(rows, reversed(rows), strict=True)]
    one, other = (torch.tensor(part) for part in zip(*pairs, strict=True))
    found = products_of([(one, other)])
    each = (one.double() * other.double()).sum(1)
    assert sum_of(found) == pytest.approx(math.fsum(each.tolist()), rel=2**-23, abs=2**-22 * float(each.abs().sum()))
    random.shuffle(pairs)
    one, other = (torch.tensor(part) for part in zip(*pairs, strict=True))
    halves = products_of([(one[:cut], other[:cut])]) + products_of([(one[cut:], other[cut:])])
    assert torch.equal(found, halves)
