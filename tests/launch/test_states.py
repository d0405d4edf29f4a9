from hypothesis import given
from hypothesis import strategies as st

from drivetrain.launch.states import UNKNOWN, JobStatus, State, next_state

SEEN = st.builds(JobStatus, state=st.sampled_from(State))


@given(st.sampled_from(State), SEEN)
def test_what_was_cancelled_never_runs_again(before, seen):
    after = next_state(before, seen, cancelled=True)
    assert after in (State.CANCELLED, State.STOPPING, State.SUCCEEDED) or (after is before and before.final)


@given(st.sampled_from(State), SEEN)
def test_otherwise_the_engine_is_believed(before, seen):
    after = next_state(before, seen, cancelled=False)
    assert after is seen.state or (seen.state is State.LOST and before.final)


@given(st.sampled_from(State), st.booleans())
def test_an_engine_that_forgets_a_job_does_not_undo_its_end(before, cancelled):
    after = next_state(before, UNKNOWN, cancelled=cancelled)
    assert after is before if before.final else after is (State.CANCELLED if cancelled else State.LOST)
