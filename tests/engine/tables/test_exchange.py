"""Sums of rows over ranks, as a tree."""

import time
from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engine.tables.exchange import AskedAhead, row_sums, tree_of

ROWS = st.lists(st.lists(st.integers(0, 6), unique=True, max_size=5), min_size=1, max_size=8)


@given(ROWS, st.integers(0, 99))
def test_a_rows_sum_is_the_tree_of_the_ranks_that_have_it(asked, seed):
    draw = torch.Generator().manual_seed(seed)
    given_rows = [(rank, row) for rank, rows in enumerate(asked) for row in rows]
    gradients = torch.randn(len(given_rows), 3, generator=draw)
    by_place = dict(zip(given_rows, gradients, strict=True))
    ranks, rows = (torch.tensor([pair[k] for pair in given_rows], dtype=torch.int64) for k in (0, 1))
    sums = row_sums(rows, ranks, tree_of(len(asked)))
    found_rows, found = sums.rows, sums.of(gradients)

    def tree(row, ranks):
        if len(ranks) == 1:
            return by_place.get((ranks[0], row), torch.zeros(3))
        half = len(ranks) // 2
        return tree(row, ranks[:half]) + tree(row, ranks[half:])

    assert found_rows.tolist() == sorted({row for _, row in given_rows})
    for row, total in zip(found_rows.tolist(), found, strict=True):
        assert torch.equal(total, tree(row, range(8)))


def test_a_sum_of_nothing_below_zero_is_zero_in_every_bit():
    for ranks in (1, 2, 3):
        rows = torch.arange(5).repeat(ranks)
        places = torch.arange(ranks).repeat_interleave(5)
        sums = row_sums(rows, places, tree_of(ranks)).of(torch.full((5 * ranks, 3), -0.0))
        assert not sums.signbit().any()


def test_a_step_is_not_told_before_the_one_ahead_of_it_is_through():
    told = []

    def ask(plan):
        told.append(f"{plan} begins")
        time.sleep(0.05 if plan == "slow" else 0)
        told.append(f"{plan} ends")

    first = AskedAhead([partial(ask, "slow")])
    second = AskedAhead([partial(ask, "quick")], first)
    second.wait()
    assert told == ["slow begins", "slow ends", "quick begins", "quick ends"]
