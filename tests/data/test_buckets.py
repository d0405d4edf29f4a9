import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.buckets import Buckets, order_of, reading_order
from drivetrain.data.order import Order
from drivetrain.data.recipe import Train
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure


@settings(max_examples=40)
@given(st.integers(1, 120), st.integers(1, 17), st.integers(1, 9), st.integers(0, 99), st.data())
def test_every_sample_comes_once_an_epoch_and_any_stretch_can_be_asked_for(size, batch, batches, seed, data):
    order = Buckets(Order(size, seed, True), batch, batches)
    whole = order.compute(np.arange(3 * size))
    for epoch in np.split(whole, 3):
        assert sorted(epoch) == list(range(size))
    start = data.draw(st.integers(0, 3 * size - 1))
    stop = data.draw(st.integers(start + 1, 3 * size))
    again = order_of(order.metadata)
    assert again.ids(start, stop).tolist() == whole[start:stop].tolist()
    assert again.digest(start, stop) == order.digest(start, stop)


def test_batches_hold_neighbours_and_come_in_no_order():
    order = Buckets(Order(1000, 0, True), 10, 50)
    batches = order.ids(0, 500).reshape(50, 10)
    assert np.ptp(batches, axis=1).mean() < 40
    assert np.abs(np.corrcoef(batches[:, 0], np.arange(50))[0, 1]) < 0.5
    assert not np.array_equal(batches, order.ids(1000, 1500).reshape(50, 10))


class Lengths:
    thread_safe, fingerprint = True, "f"

    def __init__(self, by_length):
        self.by_length = by_length

    def __len__(self):
        return 40


def test_a_source_that_is_not_numbered_by_length_is_refused():
    train = Train(sources=({},), buckets=2)
    _, order = reading_order(train, {"one": Lengths(True)}, 0, Scale(Batches(4)), 1)
    assert order.metadata["buckets"] == [4, 2]
    with pytest.raises(Failure) as refused:
        reading_order(train, {"one": Lengths(False)}, 0, Scale(Batches(4)), 1)
    assert refused.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.parametrize("settings", [{"shuffle": False}, {"sources": ({}, {})}])
def test_buckets_with_what_they_would_undo_are_a_mistake(settings):
    with pytest.raises(ValueError, match="buckets"):
        Train(**{"sources": ({},), "buckets": 2} | settings)
