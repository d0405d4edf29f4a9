import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.launch import attempts
from drivetrain.launch.attempts import Attempts, JobAttempt, exit_code, following, worth_again
from drivetrain.launch.restarts import GiveUp, Retry
from drivetrain.spec.exits import Exit, Outcome


def outcome(code, **where):
    return Outcome(code=code, cause="test", where=where)


def attempt(how, before=None, reached=None):
    return JobAttempt(outcome=how, before=before, reached=reached, began=0.0, ended=1.0)


RETRIED = [Exit.PEER_UNAVAILABLE, Exit.STORAGE, Exit.STOPPED, Exit.CORRUPTION_SUSPECTED, Exit.HANG]


@pytest.mark.parametrize("code", list(Exit))
def test_l09_only_the_codes_with_a_star_get_another_attempt(code):
    again = following([attempt(outcome(code), 0, 10)], 20, 3)
    assert isinstance(again, Retry) == (code in RETRIED)
    assert exit_code(outcome(code)) == code


@pytest.mark.parametrize(
    ("how", "again", "code"),
    [
        (outcome(Exit.INTERNAL, signal="SIGKILL", rank=3), True, 69),
        (outcome(Exit.INTERNAL, **{"signal": "SIGKILL", "class": "oom"}), False, 70),
        (outcome(Exit.INTERNAL, **{"class": "unsaid"}), True, 69),
        (outcome(Exit.STOPPED, stop="asked"), False, 0),
        (outcome(Exit.STOPPED), True, 75),
    ],
    ids=["killed", "out of memory", "unsaid", "asked to stop", "stopped by a signal"],
)
def test_what_a_code_does_not_tell(how, again, code):
    assert worth_again(how) is again
    assert exit_code(how) == code


@given(st.integers(0, 6), st.integers(1, 4), st.lists(st.booleans(), min_size=1, max_size=30))
def test_l10_attempts_are_bounded_in_all_and_without_progress(retries, fruitless, progress):
    history, step, ended = [], 0, None
    for fruitful in progress:
        history.append(attempt(outcome(Exit.STOPPED), step, step + fruitful))
        step += fruitful
        ended = following(history, retries, fruitless)
        if isinstance(ended, GiveUp):
            break
    assert len(history) <= retries + 1
    in_vain = [not one.fruitful for one in history]
    assert not any(all(in_vain[n : n + fruitless + 1]) for n in range(len(in_vain) - fruitless))
    if isinstance(ended, GiveUp):
        assert ended.outcome.code is Exit.INTERNAL
        assert "75 test" in ended.outcome.cause
        assert not worth_again(ended.outcome)


def test_the_pause_grows_while_nothing_new_is_committed():
    history = [attempt(outcome(Exit.HANG), 0, 10)]
    assert following(history, 99, 99) == Retry(0.0)
    pauses = []
    for _ in range(9):
        history.append(attempt(outcome(Exit.HANG), 10, 10))
        pauses.append(following(history, 99, 99).pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_they_are_kept(tmp_path):
    assert attempts.read(tmp_path) == Attempts()
    kept = Attempts(state="ended", attempts=(attempt(outcome(Exit.HANG, rank=1), 0, 5),), since=1, open=(2.0, None))
    attempts.write(tmp_path, kept)
    assert attempts.read(tmp_path) == kept
    assert (tmp_path / attempts.FILE).stat().st_mode & 0o777 == 0o600
