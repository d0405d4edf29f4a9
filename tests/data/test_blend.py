import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.blend import LONGEST_PERIOD, Blend, BlendSource, BlendStage, period, whole_weights
from drivetrain.data.windows import Windows

weights = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@settings(max_examples=60)
@given(weights)
def test_at_every_prefix_each_source_is_less_than_one_sample_from_its_share(parts):
    table, total = period(tuple(parts)), sum(parts)
    for source, part in enumerate(parts):
        taken = np.cumsum(table == source)
        exact = part * np.arange(1, total + 1) / total
        assert np.abs(taken - exact).max() < 1
        assert taken[-1] == part


@pytest.mark.parametrize(
    ("given_", "whole"),
    [([1, 1], [1, 1]), ([0.3, 0.7], [3, 7]), ([2, 4, 6], [1, 2, 3]), ([0.1, 0.25], [2, 5]), ([7], [1])],
)
def test_weights_become_the_smallest_whole_numbers(given_, whole):
    assert whole_weights(given_) == whole


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6))
def test_weights_without_a_short_period_are_rounded_to_one(found):
    whole = whole_weights(found)
    assert sum(whole) <= LONGEST_PERIOD
    assert min(whole) >= 1
    exact = [Fraction(repr(w)) for w in found]
    for part, share in zip(whole, exact, strict=True):
        assert abs(part / sum(whole) - share / sum(exact)) <= len(found) / LONGEST_PERIOD + 1e-12


sizes = st.lists(st.integers(1, 30), min_size=2, max_size=4)


@settings(max_examples=60)
@given(sizes, st.data())
def test_each_sample_of_a_source_comes_once_per_pass_over_it(counts, data):
    parts = data.draw(st.lists(st.integers(1, 9), min_size=len(counts), max_size=len(counts)))
    blend = Blend(counts, [BlendStage(0, tuple(parts))], seed=3, shuffle=True)
    ids = blend.ids(0, 400)
    for source, (offset, size) in enumerate(zip(blend.offsets, counts, strict=True)):
        mine = ids[(ids >= offset) & (ids < offset + size)] - offset
        assert len(mine) == blend.coverage(400)[source]
        for pass_ in range(len(mine) // size):
            assert sorted(mine[pass_ * size : (pass_ + 1) * size]) == list(range(size))


@settings(max_examples=60)
@given(sizes, st.integers(0, 300), st.integers(1, 100), st.integers(1, 200), st.data())
def test_any_stretch_is_what_the_whole_says_also_over_stages(counts, start, length, change, data):
    def draw():
        drawn = data.draw(st.lists(st.integers(0, 5), min_size=len(counts), max_size=len(counts)))
        return tuple(drawn) if any(drawn) else tuple([1] * len(counts))

    stages = [BlendStage(0, draw()), BlendStage(change, draw())]
    whole = Blend(counts, stages, 1, True).ids(0, start + length)
    assert Blend(counts, stages, 1, True).ids(start, start + length).tolist() == whole[start:].tolist()
    first = Blend(counts, stages[:1], 1, True)
    assert first.ids(0, change).tolist() == Blend(counts, stages, 1, True).ids(0, change).tolist()
    blend = Blend(counts, stages, 1, True)
    assert sum(blend.coverage(start + length)) == start + length


def test_a_source_that_a_stage_leaves_out_goes_on_where_it_was():
    blend = Blend([10, 10], [BlendStage(0, (1, 1)), BlendStage(8, (1, 0)), BlendStage(12, (0, 1))], 0, False)
    assert [int(i) for i in blend.ids(0, 16) if i >= 10] == [10, 11, 12, 13, 14, 15, 16, 17]
    assert blend.coverage(16) == [8, 8]


def test_the_order_of_a_blend_never_changes():
    blend = Blend([100, 50, 7], [BlendStage(0, (0.5, 0.3, 0.2))], 42, True)
    assert json.dumps(blend.ids(0, 12).tolist()) == GOLDEN


GOLDEN = "[88, 132, 32, 153, 62, 101, 99, 151, 124, 97, 95, 145]"


def test_samples_of_several_sources_come_in_the_order_that_was_asked_for():
    one = Windows(np.arange(0, 41, dtype=np.uint16), 4, "a")
    two = Windows(np.arange(1000, 1041, dtype=np.uint32), 4, "b")
    source = BlendSource([one, two])
    assert len(source) == 20
    ids = np.array([15, 0, 9, 10])
    rows = source.read(ids, ids)
    assert rows[:, 0].tolist() == [1020, 0, 36, 1000]
    assert rows.shape == (4, 5)
    assert source.fingerprint == "a+b"


class Words:
    """A source whose samples are no arrays."""

    thread_safe, fingerprint = False, "w"

    def __len__(self):
        return 3

    def read(self, ids, positions):
        return [f"w{i}@{p}" for i, p in zip(ids, positions, strict=True)]


def test_samples_that_are_no_arrays_are_a_list_with_their_positions():
    source = BlendSource([Words(), Words()])
    assert source.read(np.array([4, 0, 5]), np.array([7, 8, 9])) == ["w1@7", "w0@8", "w2@9"]
    assert not source.thread_safe
