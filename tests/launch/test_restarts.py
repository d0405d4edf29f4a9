import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.launch.restarts import Ended, GiveUp, Retry, next_start
from drivetrain.spec.exits import Exit, Outcome


def ended(code=Exit.INTERNAL, killed=True, reached=0, **where):
    return Ended(Outcome(code=code, cause=f"end with {int(code)}", where=where), killed, reached)


@pytest.mark.parametrize("code", [Exit.PEER_UNAVAILABLE, Exit.CORRUPTION_SUSPECTED, Exit.HANG])
def test_what_another_start_may_help_is_started_again(code):
    assert next_start([ended(code, killed=False)], 3) == Retry(0.0)


@pytest.mark.parametrize("code", [c for c in Exit if c not in (69, 83, 84)])
def test_l09_other_codes_stay(code):
    end = ended(code, killed=False)
    assert next_start([end], 3) == GiveUp(end.outcome)


def test_p22_three_restarts_without_a_newly_committed_step_are_a_crash_loop():
    history = [ended(reached=5)]
    pauses = []
    while isinstance(following := next_start(history, 3), Retry):
        pauses.append(following.pause)
        history.append(ended(reached=5, step=7))
    assert pauses == [0.0, 1.0, 2.0]
    assert following.outcome.code == Exit.INTERNAL
    assert "crash loop: 3 restarts" in following.outcome.cause
    assert following.outcome.where == {"step": 7, "restarts": 3}


@given(st.lists(st.integers(0, 1), max_size=40))
def test_a_run_that_gets_further_is_started_again_for_ever(advances):
    reached, history = 0, []
    for advance in [1, *advances]:
        reached += advance
        history.append(ended(reached=reached))
        fruitless = 0
        for before, after in zip(history[-2::-1], history[:0:-1], strict=True):
            if after.reached > before.reached:
                break
            fruitless += 1
        assert isinstance(next_start(history, 3), Retry) == (fruitless < 3)


def test_p21_what_ran_out_of_memory_is_not_tried_blindly_again():
    end = ended(**{"class": "oom"})
    assert next_start([end], 3) == GiveUp(end.outcome)
