"""What ranks tell each other at a step: here over rows that lie side by side."""

import time

import numpy as np
import pytest

from drivetrain.loop.step_sync import WIDTH, StepSync
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit


class Row:
    """One rank's of a table that all see."""

    def __init__(self, table, rank):
        self.table, self.rank = table, rank

    def send(self, row):
        self.table[self.rank] = row

    def receive(self):
        return self.table


def ranks(count):
    table = np.zeros((count, WIDTH), np.int64)
    return [StepSync(Row(table, rank), StopRequests(), alone=False) for rank in range(count)]


@pytest.mark.parametrize("late", [0, 2])
def test_all_ranks_stop_at_the_step_at_which_the_first_one_is_beyond_its_deadline(late):
    """Whichever of them has one; in a run it is the leader, since machines' clocks differ."""
    for past, wanted in ((False, Exit.DONE), (True, Exit.STOPPED)):
        group = ranks(3)
        group[late].deadline = time.time() + (-1 if past else 1000)
        for one in group:
            one.send()
        assert [one.receive().end for one in group] == [wanted] * 3
