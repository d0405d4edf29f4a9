"""Negatives: never one that the user chose, the same whoever draws them, and none where nothing is left."""

import numpy as np
import pytest

from drivetrain.tasks.ranking.negatives import NONE, NegativeSampler
from drivetrain.tasks.ranking.recipe import Negatives

DRAW = np.random.default_rng(5)
USERS = DRAW.integers(0, 30, 2000) * 7 - 50
ITEMS = (DRAW.random(2000) ** 2 * 120).astype(np.int64)
KINDS = ("uniform", "popularity")


def sampler(kind="uniform", users=USERS, items=ITEMS, count=120, **settings):
    return NegativeSampler(np.asarray(users), np.asarray(items), count, Negatives(kind=kind, **settings))


@pytest.mark.parametrize("kind", KINDS)
def test_no_negative_was_chosen_by_the_user(kind):
    chosen = set(zip(USERS.tolist(), ITEMS.tolist(), strict=True))
    drawn = sampler(kind).draw(USERS, np.arange(2000), 4)
    assert drawn.min() >= 0
    assert drawn.max() < 120
    for user, items in zip(USERS.tolist(), drawn.tolist(), strict=True):
        assert not any((user, item) in chosen for item in items)


@pytest.mark.parametrize("kind", KINDS)
def test_they_follow_from_user_and_position_whoever_draws_them(kind):
    positions = np.arange(2000) + 10**9
    whole = sampler(kind).draw(USERS, positions, 3)
    halves = [sampler(kind).draw(USERS[part], positions[part], 3) for part in (slice(0, 700), slice(700, None))]
    assert np.array_equal(np.concatenate(halves), whole)
    assert not np.array_equal(sampler(kind).draw(USERS, positions + 1, 3), whole)
    assert not np.array_equal(sampler(kind, seed=1).draw(USERS, positions, 3), whole)


def test_a_user_who_left_one_item_gets_it_and_one_who_left_none_gets_none():
    made = sampler(users=[1] * 9 + [2] * 10, items=[*range(9), *range(10)], count=10)
    assert (made.draw(np.array([1, 1]), np.arange(2), 5) == 9).all()
    assert (made.draw(np.array([2]), np.arange(1), 5) == NONE).all()


def test_a_user_who_is_not_known_may_get_any_item():
    drawn = sampler().draw(np.full(4000, 999), np.arange(4000), 1)
    assert len(np.unique(drawn)) == 120


def test_popularity_draws_by_a_power_of_how_often_an_item_was_chosen():
    items = np.repeat(np.arange(4), [10, 20, 40, 80])
    made = sampler("popularity", users=np.zeros(150, np.int64), items=items, count=4, power=0.75)
    drawn = made.draw(np.ones(40000, np.int64), np.arange(40000), 1)
    wanted = np.array([10, 20, 40, 80]) ** 0.75
    assert np.bincount(drawn.ravel()) / 40000 == pytest.approx(wanted / wanted.sum(), abs=0.01)
