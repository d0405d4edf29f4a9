"""What devices have, and how amounts are written."""

import pytest

from drivetrain.plan.chips import CHIPS, chip, memory_size
from drivetrain.plan.duration import Rate, Work, at_rate, at_utilization
from drivetrain.plan.flops import peak
from drivetrain.spec.exits import Failure


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80e9), ("1.5 GiB", 1.5 * 2**30), ("16G", 16 * 2**30), ("512MB", 512e6), ("7", 7)]
)
def test_an_amount_of_memory(text, size):
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["", "0GB", "much", "-3GB", "3PB"])
def test_what_is_no_amount(text):
    with pytest.raises(Failure, match="no amount of memory"):
        memory_size(text)


def test_every_chip_has_arithmetic_and_a_source():
    for name, found in CHIPS.items():
        assert chip(name.lower()) == found
        assert peak(found.name, "bf16")
        assert "datasheet" in found.source
    with pytest.raises(Failure, match="not in the table"):
        chip("abacus")


def test_time_and_cost_by_a_rate_and_by_a_share_of_the_peak():
    work = Work(steps=100, samples=1000, flops_per_sample=1e12, processes=4)
    found = at_rate(work, Rate("a run", 2, samples=5.0, flops=1e13), price=2.0)
    assert (found.whole, found.step, found.cost) == (50.0, 0.5, pytest.approx(50 / 3600 * 4 * 2))
    assert at_rate(work, Rate("a run", 2, samples=5.0)).whole == 100.0
    assert at_rate(work, Rate("a run", 2, samples=0.0)) is None
    assert at_utilization(work, 1e14, 0.5, "a chip").whole == 5.0
    assert at_utilization(Work(1, 1, None, 1), 1e14, 0.5, "a chip") is None
