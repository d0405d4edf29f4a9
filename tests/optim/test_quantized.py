"""Numbers in 8 bits: the levels of the paper, and the nearest of them for each number."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from drivetrain.optim.quantized import BLOCK, blocks_of, levels, quantize, restored

CPU = torch.device("cpu")


def round_trip(values, signed):
    codes, scales = torch.zeros(values.shape, dtype=torch.uint8), torch.zeros(blocks_of(values.numel()))
    quantize(values, codes, scales, signed=signed)
    return restored(codes, scales, signed=signed)


@pytest.mark.parametrize(("signed", "least"), [(True, -1.0), (False, 0.0)])
def test_there_are_256_levels_up_to_one_and_zero_is_one_of_them(signed, least):
    values = levels(signed, CPU)
    assert len(values) == 256
    assert values.unique().equal(values)
    assert values[-1] == 1
    assert 0 in values
    assert least <= values[0] < least + 0.01
    assert (values[values > 0] < 1e-6).any()  # seven powers of ten


LEAST = torch.finfo(torch.float32).tiny
"""Below it a number has fewer digits, and one divided by it may be infinite: such blocks may become zeros."""


@given(
    numbers=st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=3 * BLOCK),
    signed=st.booleans(),
)
@example(numbers=[2.0**-149], signed=False)  # the least number there is
def test_each_number_becomes_the_nearest_level_of_its_block(numbers, signed):
    values = torch.tensor(numbers) if signed else torch.tensor(numbers).abs()
    found, table = round_trip(values, signed), levels(signed, CPU)
    for block, got in zip(values.split(BLOCK), found.split(BLOCK), strict=True):
        largest = block.abs().max()
        best = (block[:, None] - table * largest).abs().amin(1)
        assert ((block - got).abs() <= best + 1e-6 * largest + LEAST).all()
        if largest >= LEAST:
            assert (got[block == largest] == largest).all()  # the largest is kept as it is


def test_zeros_are_zeros_and_so_is_a_state_that_nobody_has_written():
    assert torch.equal(round_trip(torch.zeros(3, 300), True), torch.zeros(3, 300))
    untouched = restored(torch.zeros(5, 99, dtype=torch.uint8), torch.zeros(blocks_of(495)), signed=True)
    assert torch.equal(untouched, torch.zeros(5, 99))
