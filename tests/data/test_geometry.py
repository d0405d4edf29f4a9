import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.geometry import Geometry, choose_lanes, divisors
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

geometries = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 40)).map(
    lambda t: (t[0] * t[1] * t[2], t[0] * t[1], t[0], t[3])  # batch, lanes, processes, micro
)

powers = st.integers(0, 4).map(lambda power: 1 << power)


@given(geometries, st.integers(0, 5), st.integers(0, 200))
def test_the_ranks_shares_are_the_step_without_gap_or_overlap(shape, step, total):
    batch = shape[0]
    start, stop = step * batch, min((step + 1) * batch, max(total, step * batch))
    geometry = shaped(*shape)
    chunks = [chunk for rank in range(geometry.processes) for chunk in geometry.share(rank, step + 1, total)]
    positions = [p for chunk in chunks for p in range(chunk.start, chunk.stop)]
    assert positions == list(range(start, stop))
    assert all(0 < chunk.stop - chunk.start <= geometry.micro for chunk in chunks)


@given(geometries)
def test_a_lane_keeps_its_positions_on_any_number_of_processes(shape):
    batch, lanes, _, micro = shape
    lane_of = {}
    for processes in divisors(lanes):
        for rank in range(processes):
            for chunk in shaped(batch, lanes, processes, micro).share(rank, 1, batch):
                assert lane_of.setdefault(chunk.start, chunk.lane) == chunk.lane
                assert chunk.lane == chunk.start // (batch // lanes)


def test_micro_batches_of_one_lane_are_numbered():
    chunks = shaped(8, 2, 1, 2).share(0, 1, 8)
    assert [(chunk.lane, chunk.part) for chunk in chunks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def shaped(batch, *rest):
    return Geometry(Batches(batch), *rest)


def test_in_a_ragged_last_step_the_last_ranks_may_have_nothing():
    geometry = shaped(8, 4, 4, 8)
    assert [len(geometry.share(rank, 2, 11)) for rank in range(4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(("batch", "lanes", "processes"), [(18, 7, 1), (16, 8, 3)])
def test_numbers_that_do_not_divide_are_refused_with_those_that_would_do(batch, lanes, processes):
    with pytest.raises(Failure) as caught:
        shaped(batch, lanes, processes, 1)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert "1, 2" in caught.value.outcome.hint


@pytest.mark.parametrize(
    ("batch", "processes", "lanes"), [(64, 1, 8), (6, 1, 6), (48, 3, 6), (16, 16, 16), (7, 1, 7), (11, 1, 1)]
)
def test_auto_lanes(batch, processes, lanes):
    assert choose_lanes(batch, processes) == lanes


@given(powers, powers, st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 200))
def test_micro_batches_of_lanes_apart_are_the_same_on_any_number_of_processes(lanes, few, micro, parts, given, total):
    """Also in a ragged last step, and where a micro-batch is a whole lane."""
    batches, size = Batches(lanes * micro * parts), micro if given else None
    found = []
    for processes in (1, min(few, lanes), lanes):
        geometry = Geometry(batches, lanes, processes, size, apart=True)
        found.append([chunk for rank in range(processes) for chunk in geometry.share(rank, 3, total)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("batch", "lanes", "micro", "words"), [(12, 6, 1, "no power of two"), (16, 4, 8, "span lanes")]
)
def test_lanes_that_cannot_be_kept_apart_are_refused(batch, lanes, micro, words):
    with pytest.raises(Failure, match=words):
        Geometry(Batches(batch), lanes, 1, micro, apart=True)


@pytest.mark.parametrize(("batch", "processes", "lanes"), [(64, 1, 8), (6, 1, 2), (48, 4, 8), (16, 16, 16), (7, 1, 1)])
def test_auto_lanes_that_are_kept_apart(batch, processes, lanes):
    assert choose_lanes(batch, processes, apart=True) == lanes


def test_processes_that_cannot_share_lanes_apart_are_refused():
    with pytest.raises(Failure) as caught:
        choose_lanes(24, 3, apart=True)
    assert "1, 2, 4, 8" in caught.value.outcome.hint


def test_galore_trainer_10_a_batch_size_is_that_of_all_processes_together():
    recipe = load("llama-60m", ["launch.processes=4", "batch.micro=null"]).recipe
    geometry = Geometry(Batches(recipe.batch.size), recipe.lanes, recipe.launch.processes, recipe.batch.micro)
    shares = [geometry.share(rank, step=1, total=10_000) for rank in range(4)]
    assert [sum(chunk.stop - chunk.start for chunk in share) for share in shares] == [128] * 4
