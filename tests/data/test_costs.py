"""Batches by cost: cut from one order, by position, and the same whoever reads them."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data import costs as module
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.buckets import ONE_BATCH, reading_order
from drivetrain.data.column_files import open_columns
from drivetrain.data.costs import CostBatches, Cuts, cost_batches
from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Order
from drivetrain.data.recipe import ColumnFiles, Cost, Train
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure
from encoders import Small

MICRO = st.sampled_from([None, 1, 3])
COSTS = st.lists(st.integers(0, 9), min_size=4, max_size=60)


@settings(max_examples=150, deadline=None)
@given(COSTS, st.sampled_from([1, 2, 4]), st.integers(9, 30), st.integers(1, 7), MICRO, st.data())
def test_w8_shares_hold_as_much_as_the_cost_allows_whoever_asks_and_from_wherever(
    given_costs, lanes, most, longest, micro, data
):
    costs, order = np.array(given_costs, np.int64), Order(len(given_costs), 3, True)
    total = 2 * len(costs)

    def made():
        return CostBatches(lanes * longest, cuts=Cuts(order, costs, lanes, most, longest))

    with patch.object(module, "_POSITIONS", data.draw(st.integers(1, 40))):
        batches, positions = made(), np.arange(2 * total + lanes * longest, dtype=np.int64)
        paid, before = costs[order.compute(positions)], 0
        for step in range(1, batches.steps(total) + 1):
            shares = batches.shares(step, lanes)
            assert (shares[0], shares[-1]) == batches.span(step) == (before, shares[-1])
            before = shares[-1]
            for start, stop in pairwise(shares):
                assert start < stop <= start + longest
                assert paid[start:stop].sum() <= most
                assert stop == start + longest or paid[start : stop + 1].sum() > most
        assert before >= total > batches.samples(batches.steps(total) - 1)
        # Any step can be asked for first.
        step = data.draw(st.integers(1, batches.steps(total)))
        assert made().span(step) == batches.span(step)
        assert batches.steps(batches.span(step)[0] + 1) == batches.steps(batches.span(step)[1]) == step
        later = batches.since(step)
        assert later.span(1) == (0, batches.span(step + 1)[1] - batches.samples(step))
        assert later.steps(1) == 1
        for processes in (each for each in (1, 2, 4) if lanes % each == 0):
            geometry, read = Geometry(batches, lanes, processes, micro), []
            for each in range(1, batches.steps(total) + 1):
                for rank in range(processes):
                    chunks = geometry.share(rank, each, total)
                    read += [place for chunk in chunks for place in range(chunk.start, chunk.stop)]
                    assert all(paid[chunk.start : chunk.stop].sum() <= most for chunk in chunks)
                    assert len({(chunk.lane, chunk.part) for chunk in chunks}) == len(chunks)
            assert read == list(range(total))


def write(path, costs):
    path.write_text("n,s,cost\n" + "".join(f"{n},w{n},{cost}\n" for n, cost in enumerate(costs)))


def opened(path, most=9, over="stop", **options):
    settings = ColumnFiles(path=str(path), cost=Cost(column="cost", most=most, over=over), **options)
    return open_columns(settings, path.parent / "digests.json")


def refused(made):
    with pytest.raises(Failure) as found:
        made()
    return found.value.outcome


def test_steps_of_a_file_cost_what_is_allowed_on_any_number_of_processes(tmp_path):
    costs = np.random.default_rng(0).integers(1, 10, 300)
    write(tmp_path / "a.csv", costs[:100])
    write(tmp_path / "b.csv", costs[100:])
    train = Train(sources=({},))

    def read(processes, first=1):
        sources = {"log": opened(tmp_path).encoded(Small())}
        _, order = reading_order(train, sources, 0, Scale(ONE_BATCH), 1)
        batches = cost_batches(80, 160, 4, sources, order)
        source, order = reading_order(train, sources, 0, Scale(batches), 4)
        found = {}
        for rank in range(processes):
            geometry = Geometry(batches, 4, processes, None)
            reader = BatchReader(source, order, geometry, rank, 600, lambda one: one.arrays["row"], lambda batch: {})
            for step in range(first, batches.steps(600) + 1):
                found.setdefault(step, []).extend(micro.batch.tolist() for micro in reader.read(step).micro_batches)
        return found

    alone = read(1)
    rows = [row for step in alone.values() for share in step for row in share]
    assert sorted(rows) == sorted([*range(300)] * 2)
    assert all(costs[share].sum() <= 40 for step in alone.values() for share in step)
    # All but the last step are nearly full.
    assert min(sum(costs[share].sum() for share in alone[step]) for step in range(1, len(alone))) > 4 * (40 - 9)
    assert read(2) == read(4) == alone
    assert read(4, first=7) == {step: found for step, found in alone.items() if step >= 7}


def test_w8_a_sample_that_costs_too_much_is_named_by_its_file_and_row_or_left_out(tmp_path):
    costs = [5, 3, 12, 9, 0, 10]
    write(tmp_path / "a.csv", costs)
    outcome = refused(lambda: opened(tmp_path))
    assert outcome.code is Exit.BAD_DATA
    assert f"{tmp_path}/a.csv:4: column 'cost': the sample costs 12, more than 9" in outcome.cause
    for _ in range(2):  # the second time from what is remembered
        source = opened(tmp_path, over="skip")
        assert source.notes == (f"2 samples of {tmp_path} cost more than 9: left out",)
        assert source.costs().tolist() == [5, 3, 9, 0]
        found = source.encoded(Small()).read(np.arange(4), np.arange(4))
        assert found.arrays["n"].tolist() == [0, 1, 3, 4]
        assert source.place(3) == f"{tmp_path}/a.csv:6"
    assert opened(tmp_path, most=12).fingerprint != source.fingerprint
    parts = [opened(tmp_path, over="skip", part=part, split=(0.5, 0.5, 0), key="s") for part in ("train", "validation")]
    assert sorted(np.concatenate([part.costs() for part in parts]).tolist()) == [0, 3, 5, 9]
    write(tmp_path / "a.csv", [5, 3])
    assert "all samples cost more than they may" in refused(lambda: opened(tmp_path, over="skip", most=1)).cause


@pytest.mark.parametrize(
    ("cost", "why"), [("-3", "this one -3"), ("", "this one None"), ("x", "'x'"), ("1.5", "'1.5'")]
)
def test_a_cost_that_is_no_whole_number_from_0_on_is_named(tmp_path, cost, why):
    write(tmp_path / "a.csv", [1, 2, cost, 4])
    outcome = refused(lambda: opened(tmp_path))
    assert outcome.code is Exit.BAD_DATA
    assert f"{tmp_path}/a.csv:4" in outcome.cause
    assert why in outcome.cause


def test_a_cost_that_no_lane_has_room_for_and_a_source_without_one_are_refused(tmp_path):
    write(tmp_path / "a.csv", [5, 9, 3])
    sources = {"log": opened(tmp_path)}
    order = Order(3, 0, True)
    outcome = refused(lambda: cost_batches(8, 35, 4, sources, order))
    assert (outcome.code, "35 is 8 for each of 4 lanes, and a sample costs 9" in outcome.cause) == (
        Exit.BAD_RECIPE,
        True,
    )
    bare = {"log": open_columns(ColumnFiles(path=str(tmp_path / "a.csv")), tmp_path / "digests.json")}
    assert "does not say what its samples cost" in refused(lambda: cost_batches(8, 40, 4, bare, order)).cause
