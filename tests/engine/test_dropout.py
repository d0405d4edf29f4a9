"""Dropout by place: whoever holds a part of the positions drops what the whole would have."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engine.context import Positions
from drivetrain.engine.dropout import Dropout, kept


def seed(number):
    return torch.tensor([number, ~number], dtype=torch.int32)


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(1, 4), st.integers(1, 5), st.floats(0.05, 0.95))
def test_parts_of_the_positions_are_the_parts_of_the_whole(number, parts, each, p):
    places = torch.arange(parts * each)
    whole = kept(torch.ones(3, parts * each, 7), p, seed(number), places)
    together = [kept(torch.ones(3, each, 7), p, seed(number), own) for own in places.split(each)]
    assert torch.equal(torch.cat(together, dim=1), whole)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_should_be_and_neighbours_know_nothing_of_each_other(p):
    dropped = (~kept(torch.ones(64, 128, 128), p, seed(3), torch.arange(128))).double() - p
    numbers, variance = dropped.numel(), p * (1 - p)
    assert abs(float(dropped.mean())) < 5 * (variance / numbers) ** 0.5
    for dim in range(3):
        one, other = dropped.narrow(dim, 1, dropped.shape[dim] - 1), dropped.narrow(dim, 0, dropped.shape[dim] - 1)
        assert abs(float((one * other).mean())) < 5 * variance / numbers**0.5


def test_it_is_torchs_dropout_in_all_but_the_numbers():
    layer = Dropout(0.25)
    x = torch.randn(4, 8, 16)
    torch.manual_seed(1)
    one, other = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), one)
    assert not torch.equal(one, other), "each pass draws anew"
    assert torch.equal(one[one != 0], (x / 0.75)[one != 0]) or torch.allclose(one[one != 0], (x / 0.75)[one != 0])
    assert layer.eval()(x) is x
    assert layer(x.bfloat16()).dtype == torch.bfloat16


@given(st.lists(st.integers(1, 5), max_size=5))
def test_activations_of_any_shape_are_dropped_by_their_place(shape):
    x = torch.ones(shape)
    samples, positions, *_ = (*shape, 1, 1)
    torch.manual_seed(1)
    found = Dropout(0.5)(x)
    torch.manual_seed(1)
    assert torch.equal(found, Dropout(0.5)(x.view(samples, positions, -1)).view(shape))


def test_what_is_compiled_drops_the_same_where_hashes_leave_32_bits(monkeypatch):
    """Of places that torch's compiler knows to be others plus four, GCC went on with more than 32 bits."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path(sys.prefix) / "inductor"))
    there = Positions(1, 2)

    def dropped(x, number):
        return kept(x, 0.1, number, there.here(x.shape[1]))

    x = torch.ones(4, 8, 8)
    with there.given():
        for number in (123456789, -5):
            assert torch.equal(torch.compile(dropped)(x, seed(number)), dropped(x, seed(number)))
