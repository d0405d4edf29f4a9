from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.order import Order, digest


@settings(max_examples=60)
@given(st.integers(1, 5000), st.integers(0, 2**32), st.integers(0, 3), st.booleans())
def test_each_epoch_holds_every_sample_once(size, seed, epoch, shuffle):
    ids = Order(size, seed, shuffle).ids(epoch * size, (epoch + 1) * size)
    assert sorted(ids.tolist()) == list(range(size))


@settings(max_examples=40)
@given(st.integers(1, 300), st.data())
def test_a_position_has_the_same_sample_however_it_is_asked_for(size, data):
    whole = Order(size, 7, True).ids(0, 1000)
    asked = Order(size, 7, True)
    for _ in range(5):
        start = data.draw(st.integers(0, 999))
        stop = data.draw(st.integers(start, 1000))
        assert asked.ids(start, stop).tolist() == whole[start:stop].tolist()


def test_epochs_and_seeds_have_different_orders():
    first = Order(1000, 0, True)
    assert first.ids(0, 1000).tolist() != first.ids(1000, 2000).tolist()
    assert first.ids(0, 1000).tolist() != Order(1000, 1, True).ids(0, 1000).tolist()


def test_without_shuffling_the_order_is_that_of_the_source():
    assert Order(3, 0, False).ids(0, 7).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_of_a_seed_never_changes():
    """Resuming with a newer version must find the same samples: these values are for ever."""
    assert Order(1000, 42, True).ids(0, 6).tolist() == GOLDEN


GOLDEN = [262, 743, 796, 311, 983, 687]


@settings(max_examples=40)
@given(st.integers(1, 3000), st.integers(0, 2**63), st.booleans())
def test_blocks_that_span_epochs_hold_the_same_ids_as_each_epoch_asked_for_alone(size, seed, shuffle):
    whole = Order(size, seed, shuffle).ids(0, 3 * size)
    alone = [Order(size, seed, shuffle).ids(e * size, (e + 1) * size) for e in range(3)]
    assert whole.tolist() == np.concatenate(alone).tolist()


def test_sample_ids_are_spread_evenly():
    ids = Order(10_000, 3, True).ids(0, 1000)
    assert 4500 < ids.mean() < 5500


@given(st.integers(1, 500), st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_digests_of_parts_add_up_to_that_of_the_whole(size, cuts):
    order = Order(size, 1, True)
    ends = sorted({0, 200, *cuts})
    parts = sum(order.digest(a, b) for a, b in pairwise(ends))
    assert parts % 2**64 == digest(order.ids(0, 200), np.arange(200))


def test_a_digest_tells_swapped_and_replaced_samples():
    ids, positions = np.array([3, 5, 8]), np.arange(3)
    assert digest(ids, positions) != digest(ids[[1, 0, 2]], positions)
    assert digest(ids, positions) != digest(np.array([3, 5, 9]), positions)


def test_an_order_of_a_trillion_samples_takes_little_memory():
    ids = Order(10**12, 0, True).ids(5 * 10**11, 5 * 10**11 + 8)
    assert len(set(ids.tolist())) == 8
    assert all(0 <= i < 10**12 for i in ids.tolist())
