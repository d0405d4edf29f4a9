"""Where a simulation's numbers come from."""

import pytest

import records
from drivetrain.ledger.ledger import chain
from drivetrain.plan.chips import chip
from drivetrain.run.planned import PlanOptions
from drivetrain.run.simulated import SimulationOptions, simulated
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

KNOWN = ("step=2", "commit=1", "writing=4")


def simulation(recipe, *overrides, assumed=KNOWN, sizes=(8,), **options):
    options = PlanOptions(**{"processes": 1, **options})
    return simulated(load(recipe, overrides).recipe, options, SimulationOptions(assumed=assumed, sizes=sizes))


def known(found, name):
    return found["assumptions"][name]["value"]


def run_of(folder, *listed):
    """A run directory with this ledger."""
    import json

    lines, tail = b"", ""
    for record in listed:
        body = json.dumps(record, separators=(",", ":"))[:-1].encode()
        tail = chain(tail, body)
        lines += body + f',"chain":"{tail}"}}\n'.encode()
    (folder / "ledger.jsonl").write_bytes(lines)
    return folder


@pytest.fixture
def like(tmp_path):
    steps = [records.step(number, seconds=1.0) for number in (1, 2, 3)]
    return run_of(tmp_path, records.attempt(), *steps, records.commit(3, 14.0, seconds=0.5))


def test_what_is_typed_comes_before_what_a_run_has_cost(tiny, like):
    found = simulation(tiny, assumed=("step=2",), like=(like,))
    assert known(found, "step") == 2.0
    assert (known(found, "commit"), known(found, "writing")) == (0.5, 0.1)
    assert str(like) in found["assumptions"]["commit"]["origin"]


def test_a_run_that_waits_for_its_commits_stands_still_for_all_of_one(tiny, like):
    found = simulation(tiny, "checkpoint.blocking=true", assumed=(), like=(like,))
    assert (known(found, "commit"), known(found, "writing")) == (0.5, 0.0)


def test_a_steps_time_by_a_chip_and_a_commits_by_its_bytes(tiny):
    found = simulation(tiny, assumed=(), chip=chip("H100"))
    assert 0 < known(found, "step") < 1e-3
    assert "40%, which is assumed" in found["assumptions"]["step"]["origin"]
    assert 0 < known(found, "commit") < known(found, "writing")
    assert "B planned" in found["assumptions"]["writing"]["origin"]


@pytest.mark.parametrize(("processes", "asked", "share"), [(1, (), 0.0), (4, (), 1.0), (4, ("parallel.shard=2",), 0.0)])
def test_survivors_hand_over_where_another_one_holds_all(tiny, processes, asked, share):
    found = simulation(tiny, f"launch.processes={processes}", *asked, processes=processes)
    assert known(found, "handed_over") == share


@pytest.mark.parametrize(("asked", "seconds"), [("10", 10.0), ("3", 6.0), ("null", 600.0)])
def test_a_lost_machine_is_waited_for_as_the_watchdog_does(tiny, asked, seconds):
    assert known(simulation(tiny, f"launch.hang_after={asked}"), "silence") == seconds


@pytest.mark.parametrize(
    ("every", "interval"), [("{steps: 7}", 7), ("{samples: 40}", 5), ("{tokens: 1000}", 8), ("null", 12)]
)
def test_the_recipes_interval_is_told_in_steps(tiny, every, interval):
    assert simulation(tiny, f"checkpoint.every={every}")["setting"]["interval"] == interval


def test_machines_are_as_many_as_the_processes_need(tiny):
    found = simulation(tiny, assumed=(*KNOWN, "per_node=3"), sizes=(8, 9))
    assert [(row["processes"], row["nodes"]) for row in found["sizes"]] == [(1, 1), (8, 3), (9, 3)]


def test_machines_that_wait_are_counted_as_machines(tiny):
    found = simulation(tiny, assumed=(*KNOWN, "failures=0.1", "spares=2"), sizes=(64,))
    assert found["setting"]["spares"] == 2
    asked = found["sizes"][-1]["asked"]
    assert asked["per_machine"] == pytest.approx(asked["goodput"] * 8 / 10)


def test_of_several_runs_none_is_taken(tiny, like):
    with pytest.raises(Failure, match="given 2 times") as failed:
        simulation(tiny, like=(like, like))
    assert failed.value.outcome.code is Exit.BAD_COMMAND
