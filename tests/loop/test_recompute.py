"""Gradients that another process computes again before they are summed: N05."""

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

pytestmark = pytest.mark.usefixtures("forked")


def recipe(task, processes=2, every=1, **changes) -> dict:
    base = {
        "name": "again",
        "task": {"kind": task} if isinstance(task, str) else task,
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 12,
        "batch": {"size": 12, "micro": 2},
        "budget": {"steps": 30},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "checkpoint": {"every": {"steps": 5}},
        "guard": {"recompute": {"steps": every} if every else None, "replicas": {"steps": 1}},
        "launch": {"threads": 1, "processes": processes, "restarts": 0},
    }
    return base | changes


def committed(run):
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(("processes", "who"), [(1, 0), (2, [0, 1]), (3, [1, 2])])
def test_n05_a_bit_that_flips_in_a_gradient_is_found_before_it_is_summed(tmp_path, processes, who):
    task = {"kind": "flips:Added", "seen": str(tmp_path), "rank": 1 if processes > 1 else 0}
    outcome = run_under_supervisor(recipe(task, processes), tmp_path / "run")
    assert outcome.code is Exit.CORRUPTION_SUSPECTED
    assert "other bits of gradients/model/0.weight" in outcome.cause
    assert (outcome.where["rank"], outcome.where["step"]) == (who, 7)
    assert committed(tmp_path / "run") == [5]


def test_n05_without_a_check_all_ranks_agree_on_the_wrong_sum(tmp_path):
    task = {"kind": "flips:Added", "seen": str(tmp_path)}
    assert run_under_supervisor(recipe(task, every=None), tmp_path / "run").code is Exit.DONE
    assert (tmp_path / "flipped-1").exists()


def test_n05_the_run_goes_on_from_the_commit_before_to_the_bits_of_one_that_is_not_checked(tmp_path):
    task = {"kind": "flips:Added", "seen": str(tmp_path)}
    checked = recipe(task, launch={"threads": 1, "processes": 2, "restarts": 1})
    assert run_under_supervisor(checked, tmp_path / "run").code is Exit.DONE
    plain = recipe(task | {"step": 0}, every=None)
    assert run_under_supervisor(plain, tmp_path / "plain").code is Exit.DONE
    assert trace(tmp_path / "run") == trace(tmp_path / "plain")


CLEAN = {
    "statistics, a ragged end": recipe("guarded:Fit", 3, precision="bf16", budget={"samples": 352}),
    "loss scaling": recipe("guarded:Still", 2, precision="fp16", scaling={"start": 2.0**30}),
    "buffers that each process has": recipe("guarded:PlainTwice", 3, every=2),
    "exact": recipe("duel:Duel", 2, exact=True, lanes=4, batch={"size": 16, "micro": 2}),
    "alone": recipe("guarded:Fit", 1, every=3),
}


@pytest.mark.parametrize("name", CLEAN)
def test_n05_a_clean_run_never_trips_and_has_the_bits_of_one_that_is_not_checked(tmp_path, name):
    checked = CLEAN[name]
    plain = checked | {"guard": checked["guard"] | {"recompute": None}}
    for folder, wanted in (("checked", checked), ("plain", plain)):
        outcome = run_under_supervisor(wanted, tmp_path / folder)
        assert outcome.code is Exit.DONE, outcome.line()
    assert trace(tmp_path / "checked") == trace(tmp_path / "plain")


def test_a_process_that_is_alone_says_that_it_checks_itself(tmp_path):
    run_under_supervisor(recipe("guarded:Fit", 1, budget={"steps": 1}), tmp_path)
    notes = [record["text"] for record in read(tmp_path / "ledger.jsonl") if record["kind"] == "note"]
    assert any("the same process computes twice" in note for note in notes)


@pytest.mark.parametrize(("key", "value"), [("compile", True), ("device", "mps")])
def test_what_another_process_cannot_compute_again_is_refused(key, value):
    with pytest.raises(Failure, match=r"guard\.recompute") as refused:
        load(recipe("guarded:Fit") | {key: value})
    assert refused.value.outcome.code is Exit.BAD_RECIPE
