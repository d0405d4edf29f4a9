import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.checkpoint.boxes import Box, Filling, box_of, local_of, require_whole
from drivetrain.checkpoint.manifest import Damaged

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@st.composite
def tilings(draw, shape):
    """Boxes that cover a tensor once: the whole, cut again and again, some of them empty."""
    boxes = [Box.of_whole(shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[axis]))
        for start, extent in ((0, at), (at, box.shape[axis] - at)):
            offset, inner = list(box.offset), list(box.shape)
            offset[axis] += start
            inner[axis] = extent
            boxes.append(Box(shape, tuple(offset), tuple(inner)))
    return draw(st.permutations(boxes))


two_tilings = shapes.flatmap(lambda shape: st.tuples(tilings(shape), tilings(shape)))


def distinct(shape):
    """A tensor in which no two numbers are the same, and some are no numbers at all."""
    bits = torch.arange(1, math.prod(shape) + 1, dtype=torch.int32) * 0x01010101
    return bits.view(torch.float32).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.int32).tolist()


@given(two_tilings)
def test_what_was_cut_one_way_is_put_together_another_way_bit_for_bit(both):
    here, there = both
    tensor = distinct(here[0].whole)
    require_whole("w", there)
    for box in here:
        filling = Filling("w", box, torch.float32)
        for other in there:
            filling.add(other, tensor[other.slices])
        assert bits(filling.filled()) == bits(tensor[box.slices])


@given(shapes.flatmap(tilings), st.data())
def test_a_part_that_is_missing_there_twice_or_shifted_is_refused(boxes, data):
    full = [n for n, box in enumerate(boxes) if box.size]
    if not full:
        return
    one = data.draw(st.sampled_from(full))
    rest = [*boxes[:one], *boxes[one + 1 :]]
    wrong = [rest, [*boxes, boxes[one]]]
    for axis in range(len(boxes[one].whole)):
        offset = list(boxes[one].offset)
        offset[axis] += data.draw(st.sampled_from([-1, 1]))
        wrong.append([*rest, Box(boxes[one].whole, tuple(offset), boxes[one].shape)])
    for each in wrong:
        if each:
            with pytest.raises(Damaged):
                require_whole("w", each)


@given(shapes.flatmap(tilings))
def test_the_whole_twice_is_refused_and_the_whole_beside_empty_parts_is_not(boxes):
    whole = Box.of_whole(boxes[0].whole)
    empty = [box for box in boxes if not box.size]
    require_whole("w", [whole, *empty])
    if whole.size:
        with pytest.raises(Damaged, match="do not cover it once"):
            require_whole("w", [whole, whole])


def test_a_hole_beside_an_overlap_of_its_size_is_refused():
    """As many numbers as the whole has prove nothing."""
    parts = [Box((4,), (0,), (2,)), Box((4,), (0,), (2,))]
    with pytest.raises(Damaged, match="they have 4 numbers, the whole 4"):
        require_whole("w", parts)


def test_parts_of_several_shapes_or_types_are_refused():
    with pytest.raises(Damaged, match="several shapes"):
        require_whole("w", [Box((4,), (0,), (2,)), Box((5,), (2,), (2,))])
    filling = Filling("w", Box.of_whole((2,)), torch.float32)
    for box, part in ((Box.of_whole((3,)), torch.zeros(3)), (Box.of_whole((2,)), torch.zeros(2).half())):
        with pytest.raises(Damaged, match="several shapes or types"):
            filling.add(box, part)


def test_a_hole_in_what_is_wanted_is_refused():
    filling = Filling("w", Box((4,), (1,), (3,)), torch.float32)
    filling.add(Box((4,), (0,), (3,)), torch.zeros(3))
    with pytest.raises(Damaged, match="1 of 3 numbers are missing"):
        filling.filled()


def test_thousands_of_parts_are_judged_at_once():
    """One for each of 20,000 ranks: looking at each pair of them would take an hour."""
    parts = [Box((20_000, 8), (n, 0), (1, 8)) for n in range(20_000)]
    require_whole("w", parts)
    with pytest.raises(Damaged):
        require_whole("w", parts[1:])


@pytest.mark.parametrize(
    "claim",
    [
        {"whole": [4], "offset": [0]},
        {"whole": [4], "offset": [0], "shape": [5]},
        {"whole": [4], "offset": [3], "shape": [2]},
        {"whole": [4], "offset": [-1], "shape": [1]},
        {"whole": [4, 4], "offset": [0], "shape": [1]},
        {"whole": [4], "offset": [0], "shape": [True]},
        {"whole": [4], "offset": [0], "shape": [1.0]},
        {"whole": [1 << 40, 1 << 40], "offset": [0, 0], "shape": [0, 0]},
        {"whole": [0, 1 << 61, 4], "offset": [0, 0, 0], "shape": [0, 0, 0]},
        {"whole": [1] * 99, "offset": [0] * 99, "shape": [1] * 99},
        {"whole": "4", "offset": [0], "shape": [1]},
        [[4], [0], [1]],
        None,
    ],
)
def test_x08_a_box_that_no_tensor_has_is_refused(claim):
    with pytest.raises((ValueError, KeyError, TypeError)):
        Box.from_json(claim)


@given(shapes.flatmap(tilings))
def test_a_box_comes_back_from_json(boxes):
    assert [Box.from_json(box.to_json()) for box in boxes] == boxes


def test_a_plain_tensor_is_held_whole_and_is_its_own_memory():
    tensor = torch.nn.Parameter(torch.zeros(2, 3))
    assert box_of(tensor) == Box.of_whole((2, 3))
    assert local_of(tensor) is tensor
