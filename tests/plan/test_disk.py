"""How many commits a run keeps."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.checkpoint.retention import Retention, retained
from drivetrain.plan.disk import due_steps, most_kept
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches

AMOUNTS = st.one_of(
    st.integers(1, 40).map(lambda n: Amount(steps=n)),
    st.integers(1, 200).map(lambda n: Amount(samples=n)),
    st.integers(1, 900).map(lambda n: Amount(tokens=n)),
)
SCALE = Scale(Batches(8), 4, 100)


@given(AMOUNTS, st.integers(1, 400))
def test_the_steps_that_are_due_are_those_that_a_run_finds(every, total):
    last = SCALE.batches.steps(total)
    asked = [step for step in range(1, last + 1) if every.is_due(step, SCALE.batches.samples(step), SCALE)]
    assert set(due_steps(every, total, SCALE)) == {*asked, last}


@given(st.integers(1, 4), AMOUNTS, st.integers(0, 2), st.integers(1, 40))
def test_no_more_commits_lie_there_than_are_told(last, every, best, commits):
    policy = Retention(last=last, every=partial(every.multiples, scale=SCALE), best=best)
    there: dict[int, int] = {}
    most = 0
    for step in range(1, commits + 1):
        there[step] = SCALE.batches.samples(step)
        most = max(most, len(there))
        scores = {each: float(-each) for each in there}  # the newest is always the best
        stay = retained(there, (), scores, policy)
        there = {each: there[each] for each in stay}
    told = most_kept(range(1, commits + 1), SCALE, policy)
    assert most <= told <= most + best


def test_a_run_without_an_interval_commits_once():
    assert due_steps(None, 80, SCALE) == [10]
    assert most_kept([10], SCALE, Retention(last=3)) == 1
