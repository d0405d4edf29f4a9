"""Rounding by place: one of two neighbours, on average what was there, and a part as the whole."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from drivetrain.optim.rounding import key_of, places, round_by_place
from drivetrain.spec.box import Box

ANY = st.floats(width=32, allow_subnormal=True)
KEYS = st.builds(key_of, st.integers(0, 1 << 60), st.integers(0, 1 << 40), st.integers(0, 9), st.text(max_size=9))


def rounded(numbers, key, box=None):
    numbers = torch.as_tensor(numbers)
    out = torch.empty(numbers.shape, dtype=torch.bfloat16)
    round_by_place(numbers, box or Box.of_whole(numbers.shape), key, out)
    return out


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


@settings(max_examples=200, deadline=None)
@given(arrays(np.float32, st.integers(1, 40), elements=ANY), KEYS)
def test_a_number_becomes_one_of_its_two_neighbours(numbers, key):
    found = rounded(numbers, key)
    exact = torch.from_numpy(numbers)
    finite = exact.isfinite()
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found[exact.isinf()].float(), exact[exact.isinf()])
    # By bits, where the next larger number in size is the next one, with infinity after the largest.
    below = (exact.view(torch.int32) >> 16).to(torch.int16)
    is_exact = (exact.view(torch.int32) & 0xFFFF) == 0
    is_below, is_above = bits(found) == below, bits(found) == below + 1
    assert bool((is_below | is_above)[finite].all())
    assert bool(is_below[finite & is_exact].all()), "what bf16 has stays"


@settings(max_examples=100, deadline=None)
@given(array_shapes(min_dims=1, max_dims=4, max_side=7), KEYS, st.data())
def test_a_part_rounds_as_the_whole_does(shape, key, data):
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    offset = tuple(data.draw(st.integers(0, side - 1)) for side in shape)
    extent = tuple(data.draw(st.integers(0, side - at)) for side, at in zip(shape, offset, strict=True))
    box = Box(shape, offset, extent)
    assert torch.equal(rounded(whole[box.slices], key, box), rounded(whole, key)[box.slices])
    assert torch.equal(
        places(box, 0, box.size, whole.device), torch.arange(whole.numel()).view(shape)[box.slices].flatten()
    )


@settings(max_examples=20, deadline=None)
@given(st.floats(-(2.0**90), 2.0**90, width=32).filter(lambda x: abs(x) > 1e-30), KEYS)
def test_the_mean_is_what_was_rounded(number, key):
    count = 20_000
    exact = torch.full((count,), number)
    found = rounded(exact, key).double()
    step = float(found.max() - found.min()) or abs(number) * 2**-8
    # The mean of so many has a spread of at most step / 2 / sqrt(count); 6 times that is once in 5e8.
    assert abs(float(found.mean()) - float(exact[0])) <= 6 * step / 2 / count**0.5


def test_neighbours_in_place_step_and_name_round_independently():
    """Bits of chance that hang together would move weights together."""
    whole = torch.full((1 << 16,), 1 + 2**-8)  # midway
    ups = {}
    for step, call, name in ((1, 0, "a"), (2, 0, "a"), (1, 1, "a"), (1, 0, "b")):
        ups[step, call, name] = (rounded(whole, key_of(7, step, call, name)) > 1).double() - 0.5
    series = list(ups.values())
    for place, one in enumerate(series):
        assert abs(float((one[1:] * one[:-1]).mean())) < 0.25 * 6 / 256
        assert abs(float((one[64:] * one[:-64]).mean())) < 0.25 * 6 / 256
        for other in series[:place]:
            assert abs(float((one * other).mean())) < 0.25 * 6 / 256


def test_parts_that_do_not_lie_in_one_piece_are_rounded_in_place():
    numbers, out = torch.randn(6, 4), torch.zeros(4, 6, dtype=torch.bfloat16).T
    key, box = key_of(1, 2, 0, "w"), Box.of_whole((6, 4))
    round_by_place(numbers, box, key, out)
    assert torch.equal(out, rounded(numbers, key))
