"""Scores so far: asked in every step, gathered once after each evaluation."""

from drivetrain.optim.score_history import ScoreHistory
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches

SCALE = Scale(Batches(8))
EVERY = Amount(steps=2)


def filled(*steps):
    history = ScoreHistory()
    for step in steps:
        history.add(step, {"dogs": {"loss": float(step)}})
    return history


def test_scores_count_from_the_step_after_their_evaluation_and_only_where_they_were_due():
    history = filled(2, 3, 4)
    assert history.before(16, EVERY, SCALE) == {}
    assert history.before(17, EVERY, SCALE) == {"dogs/loss": [(16, 2.0)]}
    assert history.before(33, EVERY, SCALE) == {"dogs/loss": [(16, 2.0), (32, 4.0)]}
    assert history.before(17, EVERY, SCALE) == {"dogs/loss": [(16, 2.0)]}


def test_steps_between_two_evaluations_are_given_the_same_object():
    history = filled(2, 4)
    first = history.before(40, EVERY, SCALE)
    assert history.before(48, EVERY, SCALE) is first
    assert history.before(48, Amount(steps=4), SCALE) == {"dogs/loss": [(32, 4.0)]}
    assert history.before(48, EVERY, SCALE) is first


def test_scores_that_are_undone_or_made_again_are_gathered_anew():
    history = filled(2, 4)
    assert history.before(40, EVERY, SCALE)["dogs/loss"][-1] == (32, 4.0)
    history.forget_after(3)
    assert history.before(40, EVERY, SCALE) == {"dogs/loss": [(16, 2.0)]}
    history.add(4, {"dogs": {"loss": 7.0}})
    assert history.before(40, EVERY, SCALE)["dogs/loss"][-1] == (32, 7.0)
