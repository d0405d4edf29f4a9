"""What a run has cost, by its ledger."""

import pytest

import records
from drivetrain.plan.run_costs import costs_of
from drivetrain.spec.exits import Exit, Failure


def told(*listed):
    return costs_of(records.parsed(listed), "it")


def restarted(number, begin, at, *, noticed=None, survivors=False):
    after = {"code": 70, "cause": "killed"} | ({"noticed": noticed} if noticed else {})
    return records.attempt(number, begin, at) | {"after": after, "survivors": survivors, "started": at - 0.5}


TWICE = [
    records.attempt(at=10.0),
    records.step(1, seconds=1.5),
    records.step(2, seconds=1.0, wait=0.25),
    records.step(3, seconds=2.0, wait=0.15),
    records.evaluation(3),
    records.commit(3, 14.0, seconds=0.5) | {"waited": 0.1},
    restarted(2, 3, 20.0, noticed=18.0, survivors=True),
    records.step(4, seconds=2.5),
    records.step(5, seconds=3.0),
    restarted(3, 3, 30.0, noticed=29.0),
    records.step(4, seconds=2.0),
]


def test_steps_commits_and_starts_are_told_with_where_they_are_from():
    found = told(*TWICE)
    seconds = found.seconds
    assert seconds["step"] == 2.0  # of 1, 2 and 3 s: a start's first step is no other's
    assert seconds["spread"] == 1.0
    assert seconds["first"] == 0.0
    assert seconds["beside"] == pytest.approx((0.25 + 0.15 + 4 * 0.1 + 0.5) / 6)
    assert (seconds["commit"], seconds["writing"]) == (0.4, 0.1)
    assert seconds["cold"] == 1.0
    # The third start got no further than the one before it, so that a pause may have been before it.
    assert seconds["restart"] == (2.0,)
    assert found.handed_over == 0.5
    assert found.pulse is None
    assert seconds.keys() == found.origins.keys()
    assert "3 steps of it" in found.origins["step"]


def test_the_pulse_is_that_of_telemetry_on_several_processes():
    record = {
        "kind": "telemetry",
        "time": 12.0,
        "attempt": 1,
        "step": 2,
        "steps": 2,
        "world": 2,
        "phases": {"pulse": 0.5, "forward": 1.0},
        "host": {},
        "device": {},
        "ranks": {},
    }
    assert told(*TWICE[:3], record).pulse == 0.25


def test_a_run_that_was_never_killed_tells_no_restart():
    found = told(*TWICE[:4])
    assert not {"restart", "commit", "writing"} & found.seconds.keys()
    assert found.handed_over is None


def test_a_run_of_one_step_tells_nothing(tmp_path):
    from drivetrain.plan.run_costs import costs_of_run

    assert told(*TWICE[:2]) is None
    (tmp_path / "ledger.jsonl").touch()
    with pytest.raises(Failure, match="fewer than two steps") as failed:
        costs_of_run(tmp_path)
    assert failed.value.outcome.code is Exit.INPUT_MISSING
