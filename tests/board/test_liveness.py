"""Who trains, as far as looking tells: a counter that moves, by the looker's own clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.board.liveness import look
from drivetrain.runtime.lease import PATIENCE, HolderSign, Takeover

SECONDS = st.floats(0, 100)


def sign(counter="1", moved=1000.0, epoch=1):
    """Of a holder on another machine: whether its process is there cannot be seen."""
    return HolderSign(Takeover(epoch, None, "other", 1, "another boot"), counter, moved)


def test_nobody_who_ever_held_it_is_nobody():
    assert look(None, None, 0.0, 0.0) is None


@given(st.lists(st.tuples(SECONDS, st.booleans()), max_size=20))
def test_it_is_alive_as_long_as_its_counter_moves_within_the_patience(steps):
    clock, still, seen, counter = 0.0, 0.0, look(None, sign("0"), 0.0, 1000.0), 0
    for seconds, moves in steps:
        clock += seconds
        still = 0.0 if moves else still + seconds
        counter += moves
        seen = look(seen, sign(str(counter)), clock, 1000.0)
        assert seen.alive(clock) == (still < PATIENCE)


@given(st.floats(-1e6, 1e6))
def test_a_clock_of_the_day_that_jumps_changes_nothing_after_the_first_look(jump):
    seen = look(None, sign("1"), 0.0, 1000.0)
    assert look(seen, sign("2"), 50.0, 1000.0 + jump).alive(50.0)
    assert not look(seen, sign("1"), PATIENCE, 1000.0 + jump).alive(PATIENCE)


@pytest.mark.parametrize(("age", "alive"), [(0.0, True), (PATIENCE / 2, True), (PATIENCE + 1, False), (-500.0, True)])
def test_at_the_first_look_the_age_of_its_file_is_believed(age, alive):
    assert look(None, sign(moved=1000.0), 7.0, 1000.0 + age).alive(7.0) == alive


def test_a_new_holder_with_the_same_count_is_alive():
    seen = look(None, sign("5", epoch=1), 0.0, 1000.0)
    later = look(seen, sign("5", epoch=2), 3 * PATIENCE, 1000.0)
    assert later.alive(3 * PATIENCE)


def test_one_that_gave_the_directory_back_is_not_alive():
    assert not look(None, sign("released"), 0.0, 1000.0).alive(0.0)
