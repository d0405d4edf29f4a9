"""What one `minimize` leaves for the next, by range of samples."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_under_supervisor
from drivetrain.loop.step import Cache
from loop.test_guard import made, recipe

SAMPLES = torch.arange(24.0).reshape(12, 2)


def left(size, cache, engine):
    for start in range(0, 12, size):
        engine.span = start, min(start + size, 12)
        cache["fakes"] = SAMPLES[slice(*engine.span)]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_each_range_finds_what_was_left_for_its_samples_last(first, second, asked):
    engine = SimpleNamespace(span=(0, 0))
    cache = Cache(engine)
    left(first, cache, engine)
    left(second, cache, engine)
    for start in range(0, 12, asked):
        engine.span = start, min(start + asked, 12)
        assert "fakes" in cache
        assert torch.equal(cache["fakes"], SAMPLES[slice(*engine.span)])


def test_what_was_left_for_a_part_of_the_samples_only_is_not_there():
    engine = SimpleNamespace(span=(0, 4))
    cache = Cache(engine)
    cache["fakes"] = SAMPLES[:4]
    engine.span = 2, 6
    assert "fakes" not in cache
    with pytest.raises(KeyError, match="'fakes' for the samples from 2 to 6"):
        cache["fakes"]


def test_half_precision_is_kept_as_float32_and_no_gradient_flows_back():
    engine = SimpleNamespace(span=(0, 12))
    cache = Cache(engine)
    cache["fakes"] = SAMPLES.to(torch.bfloat16).requires_grad_()
    assert cache["fakes"].dtype is torch.float32
    assert not cache["fakes"].requires_grad


@pytest.mark.usefixtures("importable")
def test_a_network_that_moves_twice_in_a_step_has_both_in_the_ledger(tmp_path):
    run_under_supervisor(recipe(task={"kind": "guarded:Twice"}, budget={"steps": 2}), tmp_path / "run")
    first = made(tmp_path / "run")[1]
    assert first["losses"].keys() == {"model.loss", "model#2.loss"}
    assert first["losses"]["model.loss"] > 1e3 * first["losses"]["model#2.loss"]
    assert first["norm"].keys() == {"model", "model#2"}
