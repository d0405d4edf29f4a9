import pytest
from hypothesis import given
from hypothesis import strategies as st

from clock import Clock
from drivetrain.launch.patience import LONGEST, LONGEST_PAUSE, PAUSE, OutagePatience, followed
from drivetrain.spec.exits import Exit, Failure

AWAY = Failure(Exit.PEER_UNAVAILABLE, "nobody answers")


def test_an_engine_that_stays_away_is_told_of_and_its_error_is_raised_after_the_time_that_was_stated():
    clock, said, pauses = Clock(), [], []
    patience = OutagePatience(clock, said.append)
    while clock.now < LONGEST:
        pauses.append(patience.bear(AWAY))
        clock.sleep(pauses[-1])
    with pytest.raises(Failure, match="nobody answers"):
        patience.bear(AWAY)
    assert (sum(pauses), pauses[:3], max(pauses)) == (LONGEST, [PAUSE, 2 * PAUSE, 4 * PAUSE], LONGEST_PAUSE)
    assert said[0] == "nobody answers; asking again in 2 s, for 300 s more"
    assert len(said) == len(pauses)


def test_only_an_engine_that_is_away_is_borne_with():
    with pytest.raises(Failure, match="no such job"):
        OutagePatience().bear(Failure(Exit.BAD_RECIPE, "no such job"))


@given(st.lists(st.floats(0.0, 2 * LONGEST), max_size=8))
def test_an_answer_begins_it_anew(gaps):
    clock = Clock()
    patience = OutagePatience(clock, lambda _: None)
    for gap in gaps:
        clock.sleep(gap)
        assert patience.bear(AWAY) == PAUSE
        patience.answered()


def test_lines_come_once_each_whatever_fails_between_them():
    clock, said = Clock(), []
    looks = iter([False, AWAY, False, False, True])
    parts = iter([["a"], AWAY, ["b", "c"], ["d"]])

    def next_of(answers):
        answer = next(answers)
        if isinstance(answer, Failure):
            raise answer
        return answer

    lines = followed(
        lambda: next_of(looks), lambda: next_of(parts), 2.0, OutagePatience(clock, said.append), clock.sleep
    )
    assert list(lines) == ["a", "b", "c", "d"]
    assert len(said) == 2


def test_who_does_not_follow_hears_at_once_that_the_engine_is_away():
    def fails():
        raise AWAY

    with pytest.raises(Failure, match="nobody answers"):
        list(followed(None, fails, 2.0))
