"""A run under failures, on paper."""

import math
from dataclasses import replace
from itertools import count, islice
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drivetrain.plan.simulation import HOUR, Cluster, Costs, End, Fault, Setting, poisson, simulate

COSTS = Costs(step=2.0, commit=1.0, writing=5.0, notice=0.5, restart=(3.0,), cold=20.0, silence=10.0, queue=30.0)
STEADY = Cluster()
FEW = Setting(interval=10, keep=3, spares=0)


def run(costs=COSTS, cluster=STEADY, setting=FEW, *, seed=0, faults=None, **end):
    return simulate(costs, cluster, setting, Random(seed), end=End(**end), faults=faults and iter(faults))


def died(after, *, handed_over=False, in_place=True):
    return Fault(after, in_place, handed_over)


times = st.floats(0.0, 50.0)
costs = st.builds(
    Costs,
    step=st.floats(0.1, 20.0),
    spread=st.floats(0.0, 2.0),
    beside=times,
    commit=times,
    writing=times,
    notice=times,
    restart=st.tuples(times, times),
    cold=times,
    silence=times,
    queue=times,
    first=times,
)
clusters = st.builds(
    Cluster,
    nodes=st.integers(1, 50),
    failures=st.floats(0.0, 3.0),
    in_place=st.floats(0.0, 1.0),
    handed_over=st.floats(0.0, 1.0),
    repair=times,
    damaged=st.floats(0.0, 0.5),
)
chosen = st.builds(Setting, interval=st.integers(1, 40), keep=st.integers(1, 3), spares=st.integers(0, 3))


# All steps are void, and their seconds, summed up another way, come to a last bit more than were spent.
FREE = Costs(
    step=1.0,
    spread=1.0,
    commit=11.0,
    writing=5.0,
    notice=0.0,
    restart=(0.0, 0.0),
    cold=0.0,
    silence=0.0,
    queue=0.0,
    first=9.0,
)
FRAIL = Cluster(nodes=18, failures=3.0, in_place=0.0, handed_over=0.0, repair=0.0, damaged=0.5)


@example(FREE, FRAIL, Setting(interval=1, keep=1, spares=0), 0)
@settings(max_examples=40)
@given(costs, clusters, chosen, st.integers(0, 9))
def test_every_second_is_in_one_bucket_and_every_step_counts_or_is_lost(costs, cluster, setting, seed):
    found = run(costs, cluster, setting, seed=seed, seconds=5000.0)
    assert sum(found.seconds.values()) == pytest.approx(5000.0)
    assert all(seconds >= -1e-6 for seconds in found.seconds.values())
    assert 0 <= found.goodput <= 1 + 1e-9
    assert found.seconds["beside"] == pytest.approx(found.steps * costs.beside, rel=1e-6, abs=1e-3)


@settings(max_examples=40)
@given(costs, chosen, st.integers(1, 20))
def test_without_failures_only_commits_and_what_is_beside_steps_cost(costs, setting, stretches):
    costs = replace(costs, spread=0.0, first=0.0, cold=0.0)
    found = run(costs, setting=setting, steps=stretches * setting.interval + 1)
    work = setting.interval * (costs.step + costs.beside)
    # The first commit waits for none, and each other one for the one before, if that is not written yet.
    stand = stretches * costs.commit + (stretches - 1) * max(0.0, costs.writing - work)
    assert found.seconds["commit"] == pytest.approx(stand)
    whole = found.steps * (costs.step + costs.beside) + stand
    assert found.goodput == pytest.approx(found.steps * costs.step / whole)


def test_where_nothing_fails_goodput_is_what_commits_leave():
    found = run(replace(COSTS, cold=0.0), steps=10**6 + 1)
    assert found.goodput == pytest.approx(1 - COSTS.commit / (10 * COSTS.step + COSTS.commit), rel=1e-5)


@settings(max_examples=15)
@given(st.floats(1e-3, 0.1), st.integers(0, 5))
def test_goodput_falls_with_the_rate_of_failures(rate, seed):
    shares = []
    for factor in (1, 4, 16):
        cluster = Cluster(nodes=10, failures=rate * factor, in_place=1.0)
        shares.append(run(cluster=cluster, seed=seed, seconds=300 * HOUR / (10 * rate)).goodput)
    assert shares == sorted(shares, reverse=True)


@settings(max_examples=15)
@given(st.integers(0, 5), st.integers(4, 40))
def test_more_frequent_commits_lose_less_with_each_failure(seed, interval):
    cluster = Cluster(nodes=10, failures=0.1, in_place=1.0)
    lost = []
    for each in (interval, 3 * interval, 9 * interval):
        found = run(cluster=cluster, setting=FEW._replace(interval=each), seed=seed, seconds=1000 * HOUR)
        lost.append(found.lost / found.failures)
    assert lost == sorted(lost)


@pytest.mark.parametrize("between", [600.0, 3600.0, 36000.0])
@pytest.mark.parametrize("interval", [30, 120])
def test_it_comes_to_dalys_model(between, interval):
    """Commits that training waits for, failures at random also while it starts again: the model is exact there."""
    costs = Costs(step=1.0, commit=4.0, cold=30.0)
    cluster = Cluster(nodes=100, failures=HOUR / between / 100, in_place=1.0)
    found = run(costs, cluster, Setting(interval, 3, 0), seconds=4000 * between)
    work, cycle = interval * costs.step, interval * costs.step + costs.commit
    modelled = work / (between * math.exp(costs.cold / between) * math.expm1(cycle / between))
    assert found.goodput == pytest.approx(modelled, abs=0.005)


def test_a_killed_process_costs_the_steps_since_the_last_commit_that_counts():
    # The commit of step 10 is begun at 40 s, after 20 s of start, and stands for 1 s; that of step 20 at 61 s. Until
    # 67 s it is being written.
    assert run(faults=[died(66.9)], seconds=70.0).lost == 12
    assert run(faults=[died(67.1)], seconds=70.0).lost == 2


def test_survivors_lose_the_step_under_way_only():
    found = run(faults=[died(66.9, handed_over=True)], steps=30)
    assert found.lost == 0
    assert found.seconds["lost work"] == pytest.approx(66.9 - 66.0)
    assert found.seconds["restart"] == pytest.approx(20 + 0.5 + 3.0)


def test_what_survivors_left_is_there_until_the_machine_is_lost():
    left = died(66.9, handed_over=True)  # at step 22
    again = [left, died(8.0), died(500.0)]  # once more, before anything newer is committed
    assert run(faults=again, seconds=80.0).lost == 2
    found = run(faults=[left, died(8.0, in_place=False)], seconds=200.0)
    assert found.lost == 2 + 12


def test_restarts_in_vain_wait_longer_and_longer():
    """As the supervisor does it: at once, then after 1, 2, 4 ... seconds."""
    faults = [died(60.0), died(0.2), died(0.2), died(0.2), died(1e9)]
    cluster = Cluster(restarts=10)
    found = run(cluster=cluster, faults=faults, seconds=300.0)
    # Each restart that the next kill ends has passed until then; the last one waits for 4 s, and then takes 3.5.
    assert found.seconds["restart"] == pytest.approx(20 + 3 * 0.2 + 4 + 3.5)
    assert found.loops == 0
    assert run(cluster=replace(cluster, restarts=2), faults=faults, seconds=300.0).loops == 1


def test_a_job_on_several_machines_waits_after_the_first_start_in_vain():
    faults = [died(60.0), died(0.2), died(1e9)]  # before anything is committed, and once more
    pauses = []
    for nodes in (1, 2):
        costs = replace(COSTS, cold=3.0)
        found = run(costs, Cluster(nodes=nodes, restarts=5), FEW._replace(interval=100), faults=faults, seconds=300.0)
        pauses.append(found.seconds["restart"] - 3.0 - 0.2 - 0.5 - 3.0)
    assert pauses == pytest.approx([1.0, 2.0])


def test_a_spare_machine_takes_the_place_of_a_lost_one_and_is_repaired():
    cluster = Cluster(nodes=4, repair=1000.0)
    lost = [died(100.0, in_place=False), died(200.0, in_place=False), died(1100.0, in_place=False)]
    waited = [run(cluster=cluster, setting=FEW._replace(spares=n), faults=lost, seconds=3000.0) for n in (0, 1, 2)]
    # Without spares each is waited for until it is repaired; the second is lost 190 s after the wait for the first has
    # begun. With one spare the second is waited for, until the first is repaired.
    assert [found.seconds["machine"] for found in waited] == pytest.approx([190 + 1000 + 1000, 800, 0])


def test_damaged_commits_are_passed_over_while_others_are_kept():
    cluster = Cluster(damaged=0.5)
    faults = [died(400.0) for _ in range(60)]
    over = []
    for keep in (1, 2, 8):
        over.append(run(cluster=cluster, setting=FEW._replace(keep=keep), faults=faults, seconds=24000.0).over)
    assert over[0] > over[1] > over[2]


def test_the_spread_of_steps_changes_the_time_and_not_the_share():
    still, spread = run(seconds=1e5), run(replace(COSTS, spread=0.5), seconds=1e5)
    assert spread.goodput == pytest.approx(still.goodput, abs=1e-3)
    assert spread.steps != still.steps


def test_failures_come_at_their_rate_and_only_there():
    assert list(poisson(Cluster(), Random(0))) == []
    cluster = Cluster(nodes=4, failures=0.5, in_place=0.25, handed_over=1.0)
    found = list(islice(poisson(cluster, Random(0)), 4000))
    assert sum(fault.after for fault in found) / 4000 == pytest.approx(HOUR / 2, rel=0.05)
    assert sum(fault.in_place for fault in found) / 4000 == pytest.approx(0.25, abs=0.02)
    assert not any(fault.handed_over for fault in found)  # on several machines nobody can


def test_a_month_on_2048_machines_is_a_few_thousand_operations():
    """Time goes from failure to failure: a thousand times as many steps are no more work."""
    calls = count()

    class Counted(Random):
        def random(self):
            next(calls)
            return super().random()

    cluster = Cluster(nodes=2048, failures=1.6e-4, damaged=1e-3)
    found = simulate(replace(COSTS, step=0.001), cluster, FEW, Counted(0), end=End(seconds=30 * 24 * HOUR))
    assert found.failures == pytest.approx(236, rel=0.2)
    assert next(calls) < 10 * found.failures
