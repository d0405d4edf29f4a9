"""Sums by doubling, with all ranks in one process."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.runtime.doubling import exchanges


def together(rows, combine=torch.add):
    """What each rank's row has become, and the bytes and messages that each has sent. All ranks take each exchange
    together."""
    world = len(rows)
    ranks = [exchanges(row, rank, world, combine) for rank, row in enumerate(rows)]
    sent = messages = 0
    while len(passing := [exchange for rank in ranks if (exchange := next(rank, None))]) == world:
        letters = [exchange.sent.clone() for exchange in passing]
        for rank, exchange in enumerate(passing):
            assert passing[exchange.source].to == rank
            exchange.received.copy_(letters[exchange.source])
        sent += letters[0].nbytes
        messages += 1
    assert not passing
    return sent, messages


@given(st.integers(1, 70), st.randoms(use_true_random=False))
def test_any_number_of_ranks_come_to_the_sums_modulo_2_to_the_64(world, chance):
    numbers = [[chance.randrange(-(2**63), 2**63) for _ in range(3)] for _ in range(world)]
    rows = [torch.tensor(own) for own in numbers]
    together(rows)
    sums = [(sum(column) + 2**63) % 2**64 - 2**63 for column in zip(*numbers, strict=True)]
    assert [row.tolist() for row in rows] == [sums] * world


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40))
def test_any_number_of_ranks_come_to_the_smallest(numbers):
    rows = [torch.tensor([number], dtype=torch.float64) for number in numbers]
    together(rows, torch.minimum)
    assert {row.item() for row in rows} == {min(numbers)}


@pytest.mark.parametrize("world", [1024, 1536])
def test_messages_and_bytes_grow_with_the_logarithm_of_the_ranks(world):
    width = 36
    sent, messages = together([torch.ones(width, dtype=torch.int64) for _ in range(world)])
    assert messages == math.ceil(math.log2(world))
    assert sent == 2 * 8 * width * messages


def test_16384_ranks_take_14_messages_one_after_the_other():
    assert sum(1 for _ in exchanges(torch.zeros(1), 5, 16384)) == 14
    assert sum(1 for _ in exchanges(torch.zeros(1), 5, 16383)) == 14
    assert sum(1 for _ in exchanges(torch.zeros(1), 0, 1)) == 0
