"""Rates and MFU from records: time of steps and data counts, what was skipped or made again trains nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.ledger.derive import lineage, throughput
from drivetrain.ledger.throughput import Throughput, full_rate
from records import attempt, parsed, step

KNOWN = {"flops": {"per_sample": 5e9, "peak": 1e11}}


def test_rates_are_over_the_time_of_steps_and_their_data():
    made = [step(n) for n in range(1, 5)]  # a second and 8 samples each, 2 processes
    rates = throughput(parsed([attempt() | KNOWN, *made]))
    assert (rates.seconds, rates.samples, rates.tokens) == (pytest.approx(4.0), 32, 3200)
    assert rates.samples_per_second == pytest.approx(8.0)
    assert rates.tokens_per_second == pytest.approx(800.0)
    assert rates.flops_per_second == pytest.approx(4e10)
    assert rates.mfu == pytest.approx(0.2)
    assert rates.samples_per_second / full_rate(*parsed([attempt() | KNOWN])) == pytest.approx(rates.mfu)


def test_a_window_takes_the_last_steps_only():
    slow = [step(n, seconds=9.9) for n in (1, 2)]
    records = [attempt() | KNOWN, *slow, step(3), step(4)]
    assert throughput(parsed(records), 2).tokens_per_second == pytest.approx(800.0)
    assert throughput(parsed(records)).tokens_per_second == pytest.approx(3200 / 22)
    assert throughput(parsed(records), 99) == throughput(parsed(records))


def test_a_skipped_step_takes_time_and_trains_nothing():
    rates = throughput(parsed([attempt() | KNOWN, step(1), step(2, skipped={"model": "spike"})]))
    assert rates.tokens_per_second == pytest.approx(400.0)
    assert rates.mfu == pytest.approx(0.1)
    listed = step(2, skipped={"model": "listed"}, norm={}, losses={})
    assert throughput(parsed([attempt() | KNOWN, step(1), listed])) == rates


def test_a_step_in_which_one_of_two_networks_moved_did_train():
    both = {"norm": {"generator": 1.0, "discriminator": 9.0}, "skipped": {"discriminator": "spike"}}
    assert throughput(parsed([attempt(), step(1) | both])).samples == 8
    assert (
        throughput(
            parsed([attempt(), step(1) | both | {"skipped": {"generator": "spike", "discriminator": "spike"}}])
        ).samples
        == 0
    )


def test_steps_made_again_are_not_counted_twice():
    records = [attempt() | KNOWN, step(1), step(2), step(3), attempt(2, 2) | KNOWN, step(3), step(4)]
    assert throughput(lineage(parsed(records))).samples == 32


def test_each_attempt_has_its_own_devices():
    faster = attempt(2, 2) | {"world": 1, "flops": {"per_sample": 5e9, "peak": 6e11}}
    rates = throughput(parsed([attempt() | KNOWN, step(1), step(2), faster, step(3), step(4)]))
    assert rates.mfu == pytest.approx(4 * 4e10 / (2 * 2e11 + 2 * 6e11))


@pytest.mark.parametrize("told", [{}, {"per_sample": None, "peak": None}, {"per_sample": None, "peak": 1e12}])
def test_what_is_not_known_is_not_told(told):
    first = attempt() | {"flops": told}
    rates = throughput(parsed([first, step(1)]))
    assert (rates.flops_per_second, rates.mfu, full_rate(*parsed([first]))) == (None, None, 0.0)
    assert throughput(parsed([attempt(), step(1)])).mfu is None  # as older versions wrote it
    partly = throughput(parsed([attempt() | KNOWN, step(1), first, step(2)]))
    assert partly.mfu is None
    assert partly.tokens_per_second == pytest.approx(800.0)


def test_without_a_peak_flops_are_told_but_no_mfu():
    rates = throughput(parsed([attempt() | {"flops": {"per_sample": 5e9, "peak": None}}, step(1)]))
    assert rates.flops_per_second == pytest.approx(4e10)
    assert rates.mfu is None


def test_by_wall_clock_the_devices_could_have_done_more():
    rates = throughput(parsed([attempt() | KNOWN, step(1), step(2)])).within(8.0)
    assert rates.tokens_per_second == pytest.approx(200.0)
    assert rates.mfu == pytest.approx(0.05)


def test_no_step_is_no_rate():
    nothing = throughput(parsed([attempt() | KNOWN]))
    assert nothing == Throughput()
    assert nothing.to_json() == {
        "seconds": 0.0,
        "samples_per_second": 0.0,
        "tokens_per_second": 0.0,
        "flops_per_second": None,
        "mfu": None,
    }


@given(st.lists(st.tuples(st.floats(0.001, 9), st.integers(1, 99)), min_size=1, max_size=20), st.integers(1, 20))
def test_a_run_is_the_sum_of_its_windows(told, last):
    made = [step(n + 1, seconds=seconds, start=0, stop=size) for n, (seconds, size) in enumerate(told)]
    first = attempt() | KNOWN
    cut = max(0, len(made) - last)
    both = throughput(parsed([first, *made[:cut]])) + throughput(parsed([first, *made]), last)
    whole = throughput(parsed([first, *made]))
    assert both.samples == whole.samples
    assert both.mfu == pytest.approx(whole.mfu)
