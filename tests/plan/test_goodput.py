"""Which setting is best, beside the formulas; and real runs that were killed."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.goodput import from_record
from drivetrain.plan.goodput import daly, enough, expected, intervals, row, spare_counts, with_pulse, young
from drivetrain.plan.simulation import HOUR, Cluster, Costs, Setting

COSTS = Costs(step=5.0, commit=3.0, cold=120.0, silence=15.0, queue=60.0)
RECORDED = sorted((Path(__file__).parent / "goodput").glob("*.json"))


def test_daly_is_young_where_commits_are_cheap():
    assert young(2.0, 3600.0) == 120.0
    assert daly(0.01, 1e6) == pytest.approx(young(0.01, 1e6), rel=1e-3)
    assert daly(10.0, 4.0) == 4.0


@given(st.floats(0.1, 60.0), st.floats(600.0, 1e6))
def test_dalys_interval_is_the_best_of_dalys_model(commit, between):
    best = expected(daly(commit, between), commit, 60.0, between)
    for factor in (0.5, 2.0):
        assert best >= expected(factor * daly(commit, between), commit, 60.0, between)


def test_the_best_interval_and_its_goodput_are_near_the_formulas():
    cluster = Cluster(nodes=2048, failures=1.6e-4, in_place=1.0)
    found = row(16384, COSTS, cluster, Setting(1000, 3, 0), steps=10**6)
    assert found.between == pytest.approx(HOUR / (2048 * 1.6e-4))
    assert found.asked.found.goodput < found.best.found.goodput
    assert found.best.setting.interval * COSTS.step == pytest.approx(found.formula, rel=0.5)
    assert found.best.found.goodput == pytest.approx(found.expected, abs=0.005)
    # Commits stand still for three seconds, so that an interval far from the best costs much.
    assert found.asked.found.goodput < found.expected - 0.05


def test_spare_machines_are_worth_it_where_replacing_takes_long():
    slow = Cluster(nodes=2048, failures=1.6e-4, repair=3600.0)
    assert row(16384, COSTS, slow, Setting(60, 3, 0), steps=1000).best.setting.spares > 0
    quick = Cluster(nodes=8, failures=1.6e-4, repair=10.0)
    assert row(64, COSTS, quick, Setting(60, 3, 0), steps=1000).best.setting.spares == 0


def test_goodput_of_more_machines_is_not_larger():
    found = []
    for nodes in (8, 64, 512, 2048):
        cluster = Cluster(nodes=nodes, failures=1.6e-4, repair=600.0)
        found.append(row(8 * nodes, COSTS, cluster, Setting(60, 3, 0), steps=10**6).best.found.goodput)
    assert found == sorted(found, reverse=True)


def test_where_nothing_fails_the_setting_stays():
    found = row(8, COSTS, Cluster(damaged=0.1), Setting(60, 3, 0), steps=1000)
    assert found.best.setting == Setting(60, 1, 0)
    assert found.between == math.inf


def test_where_no_commit_is_left_a_run_loses_no_more_than_itself():
    """Of years of short runs that keep one commit only those are lost whose commit was damaged."""
    quick = Costs(step=0.66, commit=0.003, cold=4.5, silence=10.0, queue=60.0)
    cluster = Cluster(nodes=1, failures=1.6e-4, damaged=0.05)
    found = row(1, quick, cluster, Setting(250, 3, 0), steps=1000)
    assert found.best.setting.keep == 1
    assert found.best.found.over > 0
    assert found.best.found.goodput >= found.asked.found.goodput - 1e-4


def test_an_interval_is_no_longer_than_the_run():
    found = row(8, COSTS, Cluster(failures=1.6e-4), Setting(5, 3, 0), steps=12)
    assert found.best.setting.interval == 12


@given(st.floats(0.001, 1e5), st.floats(1e-6, 0.5))
def test_so_many_commits_are_kept_that_hardly_a_run_is_lost(failures, damaged):
    keep = enough(failures, damaged)
    assert failures * damaged**keep <= 0.01 * (1 + 1e-9)
    assert keep == 1 or failures * damaged ** (keep - 1) > 0.01 * (1 - 1e-9)


def test_the_pulse_takes_as_much_more_with_each_doubling():
    assert with_pulse(COSTS, 0.1, 4, 4) == COSTS
    assert with_pulse(COSTS, 0.1, 4, 16).step == pytest.approx(5.2)
    assert with_pulse(COSTS, 0.1, 1, 16384).step == pytest.approx(6.4)
    assert with_pulse(COSTS, 0.1, 4, 1).step == pytest.approx(4.8)


def test_what_is_tried_is_around_the_formulas_interval():
    cluster = Cluster(nodes=100, failures=0.01)
    tried = intervals(COSTS, cluster, Setting(7, 3, 0))
    steps = daly(COSTS.commit, HOUR) / COSTS.step
    assert 7 in tried
    assert min(tried) < steps / 4
    assert max(tried) > 4 * steps
    assert list(spare_counts(Cluster(nodes=100))) == [0, 1, 2, 4]
    assert list(spare_counts(Cluster())) == [0]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_real_runs_under_kills_come_to_within_three_points(path):
    """Their costs are those of another run's ledger. `make drill` makes such runs, and records them."""
    recorded = from_record(path.read_text())
    again = recorded.simulated(runs=100)
    assert again.kills
    assert again.holds, again
    assert again.real < 0.99
