"""Samples that the recipe leaves out: on any number of processes alike, and the run can be proved."""

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.data.order import Order
from drivetrain.data.quarantine import Quarantine
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.run.proof import prove
from drivetrain.spec.exits import Exit, Failure

pytestmark = pytest.mark.usefixtures("forked")

BATCH = 8


def recipe(ids, processes=1, **changes) -> dict:
    base = {
        "name": "quarantined",
        "task": {"kind": "guarded:Plain"},
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 4,
        "batch": {"size": BATCH, "micro": 2},
        "budget": {"samples": 76},
        "optimizer": {"kind": "adamw", "lr": 0.01, "clip": 1.0},
        "checkpoint": {"every": {"steps": 5}},
        "guard": {"quarantine": ids},
        "launch": {"threads": 1, "processes": processes},
    }
    return base | changes


def ids_of(step: int, first: int = 0, last: int = BATCH) -> list[int]:
    """The samples at these places of a step."""
    return Order(240, 0, True).ids((step - 1) * BATCH + first, (step - 1) * BATCH + last).tolist()


def made(run):
    return {r["step"]: r for r in lineage(read(run / "ledger.jsonl")) if r["kind"] == "step"}


HELD = [*ids_of(1, 0, 4), *ids_of(3), ids_of(5)[3], *ids_of(7, 5, 8), *ids_of(10, 0, 2)]
"""A half of step 1, which is all that a rank has; all of step 3; one sample; an uneven part; some of the ragged end."""


def test_what_is_left_out_counts_for_nothing_on_any_number_of_processes(tmp_path):
    found = {}
    for processes in (1, 2, 4):
        run = tmp_path / str(processes)
        guard = {"quarantine": HELD, "spike": {"window": 4, "deviations": 50.0, "action": "skip"}}
        assert run_under_supervisor(recipe(HELD, processes, guard=guard), run).code is Exit.DONE
        found[processes] = made(run)
        counts = {step: r["counts"]["samples"] for step, r in found[processes].items()}
        assert [counts[step] for step in (1, 2, 3, 5, 7, 10)] == [4, 8, 0, 7, 5, 2]
        assert {step: r["skipped"] for step, r in found[processes].items() if "skipped" in r} == {
            3: {"model": "quarantined"}
        }
        assert all(("loss" in r["losses"]) == (step != 3) for step, r in found[processes].items())
        assert prove(run).steps == 10
    samples = [[(r["start"], r["stop"], r["samples"]) for r in each.values()] for each in found.values()]
    assert samples[0] == samples[1] == samples[2]
    losses = [[r["losses"].get("loss", 0.0) for r in each.values()] for each in found.values()]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_a_stop_and_data_workers_change_no_bit(tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run_under_supervisor(recipe(HELD, 2), straight)
    run_under_supervisor(recipe(HELD, 2), stopped, most_steps=6)
    assert run_under_supervisor(recipe(HELD, 2), stopped, "data.train.workers=1").code is Exit.DONE
    assert trace(stopped) == trace(straight)
    assert prove(stopped).again == {"equal": 0, "not comparable": 0}


def test_exact_mode_comes_to_the_same_bits_on_any_number_of_processes(tmp_path):
    found = []
    for processes in (1, 2, 4):
        run = tmp_path / str(processes)
        wanted = recipe(HELD, processes, exact=True, task={"kind": "guarded:Shared"})
        assert run_under_supervisor(wanted, run).code is Exit.DONE
        found.append(trace(run))
    assert found[0] == found[1] == found[2]


def test_with_a_blend_ids_count_through_the_sources(tmp_path):
    sources = [{"kind": "guarded:Rows", "name": name, "weight": weight} for name, weight in (("a", 1), ("b", 3))]
    wanted = recipe([3, 240 + 17, 240 + 18], 2, data={"train": {"sources": sources, "shuffle": False}})
    assert run_under_supervisor(wanted, tmp_path / "run").code is Exit.DONE
    found = made(tmp_path / "run")
    assert sum(r["counts"]["samples"] for r in found.values()) == 76 - 3
    assert prove(tmp_path / "run").samples == 76


def test_a_sample_that_is_not_there_is_a_mistake(tmp_path):
    outcome = run_under_supervisor(recipe([240]), tmp_path / "run")
    assert outcome.code is Exit.BAD_RECIPE
    assert "0 to 239" in outcome.cause


def test_other_samples_than_before_are_another_recipe(tmp_path):
    run_under_supervisor(recipe([]), tmp_path / "run", most_steps=3)
    assert run_under_supervisor(recipe([1]), tmp_path / "run").code is Exit.INCOMPATIBLE
    assert run_under_supervisor(recipe([1]), tmp_path / "run", override=("guard",)).code is Exit.DONE
    assert prove(tmp_path / "run").steps == 10


def test_what_is_proved_depends_on_the_quarantine(tmp_path, monkeypatch):
    """A ledger that hides it does not fit the digests."""
    run_under_supervisor(recipe(HELD), tmp_path / "run")
    monkeypatch.setattr("drivetrain.data.orders.Quarantine", lambda entries=(): Quarantine())
    with pytest.raises(Failure, match="other samples"):
        prove(tmp_path / "run")
