"""Exact mode's tree: the same sums for every number of processes, and what it refuses."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drivetrain.engine.buffers import Buffers
from drivetrain.engine.exact import LaneTree, TreeAccumulator, refusal, require_lanes_apart, require_still
from drivetrain.engine.reduce import Flat
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure
from engines import CPU
from trees import Lanes, tree_sum

powers = st.integers(0, 5).map(lambda power: 1 << power)
numbers = st.floats(-(2.0**100), 2.0**100, width=32)


@given(powers, powers, st.data())
def test_a_tree_over_lanes_is_the_same_however_processes_share_it(lanes, processes, data):
    """The binary counters of the processes are the tree's lower levels, whatever their number."""
    processes = min(lanes, processes)
    leaves = [torch.tensor([data.draw(numbers)]) for _ in range(lanes)]
    own = lanes // processes
    tops = []
    for first in range(0, lanes, own):
        counter = TreeAccumulator(lambda: Flat(torch.empty(1), []))
        for leaf in leaves[first : first + own]:
            flat = counter.take()
            flat.whole.copy_(leaf)
            counter.push(flat)
        ((_, top),) = counter._held
        assert len(counter._free) + 1 <= own.bit_length()
        tops.append(top.whole)
    assert torch.equal(tree_sum(tops), tree_sum(leaves))


@given(st.integers(0, 3).map(lambda power: 1 << power), st.sampled_from([1, 200, 5000, 1 << 20]), st.data())
def test_gradients_and_losses_of_lanes_make_the_tree_of_plain_additions(lanes, limit, data):
    """Any number of micro-batches in a lane, none among them; any size of the buckets; no loss for a parameter."""
    micros = data.draw(st.lists(st.integers(0, 3), min_size=lanes, max_size=lanes))
    task = Lanes(lanes, micros)
    reduction = LaneTree(task.parameters, Group(), lanes, limit)
    assert all(task.step(reduction, range(lanes), step) for step in range(3))
    assert task.parameters[-1].grad.tolist() == [0.0] * 7


@pytest.mark.parametrize(("micros", "at_once"), [([1] * 8, 0), ([2, 2, 2, 2, 2, 1, 0, 0], 2000)])
def test_one_two_four_and_eight_processes_come_to_the_same_bits(tmp_path, importable, micros, at_once):
    """Whether buffers travel whole or by halves, and with lanes that have no sample."""
    bits = set()
    for processes in (1, 2, 4, 8):
        folder = tmp_path / str(processes)
        job = Job(folder=str(folder), recipe={}, origins={}, processes=processes, overrides=(8, micros, at_once))
        outcome = supervise(job, worker="ranks_engine:tree", preload=("torch", "ranks_engine"))
        assert outcome.code == 0, outcome
        said = json.loads(outcome.cause)
        assert said["equal"]
        assert said["buckets"] > 2
        assert said["copies"] == (8 // processes).bit_length()
        bits.add(said["bits"])
    assert len(bits) == 1


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        (nn.BatchNorm1d(4), True),
        (nn.InstanceNorm1d(4, track_running_stats=True), True),
        (nn.SyncBatchNorm(4, track_running_stats=False), True),
        (nn.BatchNorm1d(4).eval(), False),
        (nn.BatchNorm1d(4, track_running_stats=False), False),
        (nn.InstanceNorm1d(4), False),
        (nn.GroupNorm(2, 4), False),
    ],
)
def test_layers_whose_statistics_span_lanes_are_refused_by_name(layer, refused):
    network = nn.Sequential(nn.Linear(4, 4), layer)
    if not refused:
        require_lanes_apart({"model": network}, CPU)
        return
    with pytest.raises(Failure) as caught:
        require_lanes_apart({"model": network}, CPU)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert f"model.1 ({type(layer).__name__})" in caught.value.outcome.cause


def test_a_device_without_deterministic_kernels_is_refused():
    with pytest.raises(Failure, match="mps"):
        require_lanes_apart({"model": nn.Linear(1, 1)}, torch.device("mps"))


def test_a_buffer_that_a_step_has_changed_is_named_also_where_the_process_is_alone():
    network = nn.Sequential(nn.Linear(1, 1))
    network[0].register_buffer("seen", torch.zeros(2))
    network[0].register_buffer("scratch", torch.zeros(2), persistent=False)
    buffers = Buffers({"model": network}, Group(), still=True)
    buffers.begin()
    network[0].scratch += 1
    require_still(buffers.first_changed)
    network[0].seen[1] += 1
    with pytest.raises(Failure, match=r"model\.0\.seen"):
        require_still(buffers.first_changed)


def test_what_torch_says_of_a_kernel_without_order_is_a_refusal():
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        with pytest.raises(RuntimeError) as caught:
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
    finally:
        torch.set_deterministic_debug_mode(mode)
    failure = refusal(caught.value)
    assert failure.outcome.code == Exit.BAD_RECIPE
    assert "put_" in failure.outcome.cause
    assert refusal(RuntimeError("anything else")) is None
