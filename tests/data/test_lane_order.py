import json
import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drivetrain.data.blend import Blend, BlendStage, ordering_of
from drivetrain.data.geometry import Geometry
from drivetrain.data.lane_order import Blocks, LaneDeal, LaneOrder
from drivetrain.spec.batches import Batches, Change
from laws import examples

LANES = st.integers(1, 6)


@st.composite
def orders(draw, lanes=LANES):
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9))
    assume(sum(sizes))
    lanes = draw(lanes)
    share = st.integers(1, 5).map(lambda each: each * lanes)
    ramp, after = [], 0
    for _ in range(draw(st.integers(0, 2))):
        after += draw(st.integers(1, 6))
        ramp.append(Change(after, draw(share)))
    deal = LaneDeal(Batches(draw(share), tuple(ramp)), lanes)
    return LaneOrder(Blocks.of(np.array(sizes, np.int64), draw(st.integers(1, 50))), deal, draw(st.integers(0, 99)))


@settings(max_examples=examples(30, 100))
@given(orders(), st.data())
def test_every_row_comes_once_an_epoch_and_any_stretch_can_be_asked_for(order, data):
    whole = order.compute(np.arange(3 * order.size))
    for epoch in np.split(whole, 3):
        assert sorted(epoch) == list(range(order.size))
    start = data.draw(st.integers(0, 3 * order.size - 1))
    stop = data.draw(st.integers(start + 1, 3 * order.size))
    again = ordering_of(json.loads(json.dumps(order.metadata)))
    assert again.metadata == order.metadata
    for other in (again, pickle.loads(pickle.dumps(order))):
        assert other.ids(start, stop).tolist() == whole[start:stop].tolist()


@settings(max_examples=examples(20, 60))
@given(orders(st.sampled_from([1, 2, 4])), st.sampled_from([None, 1, 3]))
def test_ranks_read_each_row_once_however_many_there_are(order, micro):
    total, batches = order.size, order.deal.batches
    read = {}
    for processes in (each for each in (1, 2, 4) if order.deal.lanes % each == 0):
        geometry, ids = Geometry(batches, order.deal.lanes, processes, micro), []
        for step in range(1, batches.steps(total) + 1):
            for rank in range(processes):
                chunks = geometry.share(rank, step, total)
                ids += [order.ids(chunk.start, chunk.stop) for chunk in chunks]
        read[processes] = np.concatenate(ids).tolist()
        assert sorted(read[processes]) == list(range(total))
    assert all(each == read[1] for each in read.values())


@settings(max_examples=examples(20, 60))
@given(orders(), st.data())
def test_windows_hold_what_is_read_and_are_known_ahead(order, data):
    first = data.draw(st.integers(0, 2 * order.size - 1))
    stop = min(first + 40, 3 * order.size)
    ids, windows = [], []
    for window, start, end in order.runs(first, stop):
        rows = [np.arange(a, b) + order._firsts[block] for block, a, b in order.pieces(window)]
        laid_out = np.concatenate(rows)[order.shuffled(window)]
        assert len(laid_out) == window.stop - window.start <= order.window
        ids += laid_out[start:end].tolist()
        windows.append(window)
    assert ids == order.ids(first, stop).tolist()
    step = order.deal.batches.span(order.deal.batches.steps(first + 1))
    needed = {run.window for run in order.runs(*step)}
    assert needed <= set(order.windows_ahead(first, range(order.deal.lanes), order.deal.lanes * 5))


def test_a_lane_reads_from_few_blocks_and_lanes_begin_windows_one_after_the_other():
    deal = LaneDeal(Batches(64), 8)
    order = LaneOrder(Blocks.of(np.full(80, 500), 500), deal, 0)
    positions = np.arange(order.size)
    lanes, ids = deal.lane_of(positions), order.ids(0, order.size)
    begins = []
    for lane in range(8):
        blocks = ids[lanes == lane] // 500
        assert len(set(blocks.tolist())) <= 12
        assert max(len(set(blocks[at : at + 500].tolist())) for at in range(0, len(blocks), 500)) <= 4
        begins.append(next(order._windows(0, lane, 0)).stop - int(order._epoch(0).streams[lane]))
    assert np.diff(sorted(begins)).max() < 150
    assert not np.array_equal(ids, order.ids(order.size, 2 * order.size))


@pytest.mark.parametrize("count", [1 << 20, 1 << 36])
def test_metadata_and_memory_do_not_grow_with_the_rows(count):
    order = LaneOrder(Blocks([[1 << 16, count >> 16]], 1 << 16), LaneDeal(Batches(1 << 10), 4), 3)
    assert order.size == count
    assert len(json.dumps(order.metadata)) < 300
    assert len(np.unique(order.ids(count - 2000, count))) == 2000


def test_the_order_of_a_seed_never_changes():
    order = LaneOrder(Blocks([[100, 3], [7, 1], [50, 2]], 64), LaneDeal(Batches(8, (Change(4, 16),)), 4), 42)
    assert order.ids(0, 12).tolist() == [144, 124, 219, 222, 338, 354, 59, 57, 139, 153, 214, 208]
    assert f"{order.digest(0, 1000):016x}" == "1240f414f623b02e"


def test_a_blend_keeps_to_blocks_and_gives_each_row_once_a_pass():
    blocks = [Blocks([[50, 20]], 50), None]
    blend = Blend([1000, 500], [BlendStage(0, (2, 1))], 3, True, blocks)
    ids = blend.ids(0, 1500)
    assert sorted(ids.tolist()) == list(range(1500))
    own = ids[ids < 1000] // 50
    assert max(len(set(own[at : at + 50].tolist())) for at in range(0, 1000, 50)) <= 3
    again = ordering_of(json.loads(json.dumps(blend.metadata)))
    assert again.ids(0, 1500).tolist() == ids.tolist()
    staged = again.staged(BlendStage(600, (1, 1)))
    assert staged.ids(0, 600).tolist() == ids[:600].tolist()
    assert "blocks" not in Blend([10, 10], [BlendStage(0, (1, 1))], 3, True, [None, None]).metadata
