"""Weights under which no loss can gain but at another's cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from drivetrain.tasks.ranking.pareto import nearest, pareto_weights

NUMBERS = st.floats(-4.0, 4.0, width=16)
GRADIENTS = st.integers(1, 5).flatmap(lambda losses: arrays(np.float64, (losses, 6), elements=NUMBERS))
LEAST = arrays(np.float64, 5, elements=st.floats(0.0, 0.1875, width=16))


@pytest.mark.parametrize(
    ("gradients", "least", "wanted"),
    [
        ([[1, 0], [0, 1]], [0, 0], [0.5, 0.5]),
        ([[2, 0], [0, 1]], [0.1, 0.2], [0.2, 0.8]),
        ([[1, 1], [1, 1]], [0, 0], [0.5, 0.5]),
        ([[1, 2], [2, 4]], [0, 0], [1, 0]),
        ([[0, 0], [0, 1]], [0.1, 0], [0.1, 0.9]),
        ([[0, 0], [0, 0]], [0.2, 0], [0.6, 0.4]),
        ([[np.nan, 0], [0, 1]], [0.2, 0], [0.6, 0.4]),
        ([[1, 0], [0, 1]], [0.3, 0.7], [0.3, 0.7]),
    ],
    ids=["orthogonal", "unequal", "equal", "parallel", "a zero", "zeros", "nan", "fixed"],
)
def test_they_are_those_of_the_paper_and_there_where_its_matrix_is_singular(gradients, least, wanted):
    gradients = np.array(gradients, dtype=float)
    assert pareto_weights(gradients @ gradients.T, np.array(least, dtype=float)) == pytest.approx(wanted)


@given(GRADIENTS, LEAST, st.integers(-60, 60))
def test_they_sum_to_one_are_above_the_least_and_no_scale_of_the_loss_changes_them(gradients, least, power):
    gram, least = gradients @ gradients.T, least[: len(gradients)]
    found = pareto_weights(gram, least)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= least).all()
    assert pareto_weights(gram * 4.0**power, least).tolist() == found.tolist()


@given(arrays(np.float64, (2, 6), elements=NUMBERS))
def test_no_other_weights_of_two_losses_have_a_shorter_gradient(gradients):
    lengths = np.linalg.norm(gradients, axis=1)
    if lengths.min() == 0:
        return
    found = np.linalg.norm(pareto_weights(gradients @ gradients.T, np.zeros(2)) @ gradients)
    others = [np.linalg.norm(share * gradients[0] + (1 - share) * gradients[1]) for share in np.linspace(0, 1, 51)]
    assert found <= min(others) + 1e-4 * lengths.max()


@given(arrays(np.float64, 4, elements=st.floats(-9, 9)), st.floats(0, 2))
def test_the_nearest_point_is_nearer_than_any_other(point, total):
    found = nearest(point, total)
    assert found.min() >= 0.0
    assert found.sum() == pytest.approx(total, abs=1e-9)
    others = np.random.default_rng(0).dirichlet(np.ones(4), 50) * total
    assert np.linalg.norm(found - point) <= np.linalg.norm(others - point, axis=1).min() + 1e-9
