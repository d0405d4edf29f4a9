"""A step's memory from its events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.plan.memory import KINDS, Event, Stretch, Timeline, by_kind, deepened, measured, stretches
from drivetrain.spec.exits import Failure

SIZES = st.integers(1, 50)


def timeline(sizes_of_phases):
    """Each phase has (kind, bytes) of blocks that begin, and places of those that end."""
    events, kinds, found, alive = [], [], [], []
    for phase, steps in sizes_of_phases:
        start = len(events)
        for kind, size in steps:
            if size > 0:
                alive.append((len(kinds), size))
                events.append(Event(len(kinds), size))
                kinds.append(kind)
            elif alive:
                block, held = alive.pop()
                events.append(Event(block, -held))
        found.append(Stretch(phase, start, len(events)))
    return Timeline(tuple([0] * len(KINDS)), events, kinds, found)


def network(depth, layer, head, gradient, scratch):
    """A forward pass keeps something of each layer, a backward pass gives it up and leaves a gradient."""
    forward = [step for _ in range(depth) for step in ((5, scratch), (5, 0), (3, layer))] + [(3, head)]
    events, kinds, activations, gradients = [], [], [], []

    def begin(kind, size):
        kinds.append(kind)
        events.append(Event(len(kinds) - 1, size))
        return len(kinds) - 1, size

    for kind, size in forward:
        if size:
            block = begin(kind, size)
            if kind == 3:
                activations.append(block)
        else:
            events.append(Event(block[0], -block[1]))
    middle = len(events)
    block, size = activations.pop()
    events.append(Event(block, -size))
    for _ in range(depth):
        gradients.append(begin(1, gradient))
        block, size = activations.pop()
        events.append(Event(block, -size))
    spans = [Stretch("forward", 0, middle), Stretch("backward", middle, len(events))]
    return Timeline(tuple([0] * len(KINDS)), events, kinds, spans)


@given(SIZES, SIZES, SIZES, SIZES, st.integers(1, 40))
def test_a_deep_network_takes_what_follows_from_two_shallow_ones(layer, head, gradient, scratch, more):
    def of(depth):
        return network(depth, layer, head, gradient, scratch)

    found, whole = deepened(of(3), of(4), more), measured(of(4 + more))
    assert sum(found.peak.peak) == sum(whole.peak.peak)
    # Where two places of a step take as much, either may be told.
    assert found.peak.phase == whole.peak.phase or layer == gradient or head + layer == gradient


def test_a_layer_that_makes_another_step_is_refused():
    one = timeline([("forward", [(3, 8)])])
    other = timeline([("forward", [(3, 8)]), ("backward", [(1, 8)])])
    with pytest.raises(Failure, match="another step") as told:
        deepened(one, other, 2)
    assert told.value.outcome.code == 70


def test_the_peak_is_told_by_kind_and_phase():
    found = measured(timeline([("forward", [(0, 10), (3, 5), (5, 7), (5, 0)]), ("backward", [(1, 6)])]))
    assert found.to_json()["bytes"] == 22
    assert found.peak.phase == "forward"
    assert {kind: size for kind, size in by_kind(found.peak.peak).items() if size} == {
        "weights": 10,
        "activations": 5,
        "temporary": 7,
    }


def test_phases_without_events_are_none_and_one_that_goes_on_is_one():
    marks = [(0, "start"), (0, "forward"), (4, "forward"), (6, "backward")]
    assert stretches(marks, 9) == [Stretch("forward", 0, 6), Stretch("backward", 6, 9)]
