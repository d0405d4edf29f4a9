"""What ranks tell each other at a step: here over rows that lie side by side and are added as the pulse adds them."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.loop.step_sync import UNITS, WIDTH, StepSync, SyncResult
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Failure


class Row:
    """One rank's of a table that all see."""

    def __init__(self, table, rank):
        self.table, self.rank = table, rank

    def send(self, row):
        self.table[self.rank] = row

    def receive(self):
        return self.table.sum(axis=0).tolist()


def ranks(count, **options):
    table = np.zeros((count, WIDTH), np.int64)
    return [StepSync(Row(table, rank), StopRequests(), alone=False, **options) for rank in range(count)]


def batch(digest=0, counts=None):
    return LocalBatch(1, 0, 0, (), counts or {}, digest, False)


def heard(group):
    """What all of them hear, which is the same."""
    first, *others = [one.receive() for one in group]
    assert others == [first] * len(others)
    return first


@pytest.mark.parametrize("late", [0, 2])
def test_all_ranks_stop_at_the_step_at_which_the_first_one_is_beyond_its_deadline(late):
    """Whichever of them has one; in a run it is the leader, since machines' clocks differ."""
    for past, wanted in ((False, Exit.DONE), (True, Exit.STOPPED)):
        group = ranks(3)
        group[late].deadline = time.time() + (-1 if past else 1000)
        for one in group:
            one.send()
        assert [one.receive().end for one in group] == [wanted] * 3


@given(st.lists(st.sampled_from(Exit), min_size=1, max_size=5))
def test_all_ranks_end_with_the_largest_code_that_one_asks_for(codes):
    group = ranks(len(codes))
    for one, code in zip(group, codes, strict=True):
        one.failure = Failure(code, "on purpose") if code else None
        one.send()
    assert heard(group).end == max(codes)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_digests_add_up_modulo_2_to_the_64(digests):
    group = ranks(len(digests))
    for one, digest in zip(group, digests, strict=True):
        one.send(batch(digest))
    assert heard(group).digest == sum(digests) % 2**64


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=UNITS, max_size=UNITS), min_size=1, max_size=5), st.data())
def test_counts_add_up_by_unit_whatever_order_a_rank_has_them_in(rows, data):
    units = [f"unit {number}" for number in range(UNITS)]
    group = ranks(len(rows) + 1)
    for one, row in zip(group, [*rows, rows[0]], strict=True):
        counts = data.draw(st.permutations(list(zip(units, row, strict=True))))
        one.send(batch(), batch(counts=dict(counts)))
    heard(group)
    group[-1].send(batch())  # at the end of the data a rank may have nothing to read
    assert heard(group).counts == dict(zip(units, map(sum, zip(*rows, strict=True)), strict=True))


def test_what_several_ranks_read_alike_is_counted_once():
    (one,), (copy,) = ranks(1), ranks(1, speaks=False)
    for rank in (one, copy):
        rank.send(batch(7), batch(counts={"samples": 4}))
    assert heard([one]) == SyncResult(Exit.DONE, False, 0, 7, {"samples": 4})
    assert heard([copy]) == SyncResult(Exit.DONE, False, 0, 0, {"samples": 0})


@pytest.mark.parametrize("who", [(), (0,), (2,), (0, 1, 2)])
def test_all_ranks_hear_that_one_has_heard_a_command(who):
    answers = iter([rank in who for rank in range(3)])
    group = ranks(3, commanded=lambda: next(answers))
    for one in group:
        one.send()
    assert heard(group).commands == bool(who)


def test_more_units_than_the_pulse_has_room_for_are_refused():
    (one,) = ranks(1)
    with pytest.raises(ValueError, match="gives 9 units; 8 is the most"):
        one.send(batch(), batch(counts=dict.fromkeys("abcdefghi", 1)))
