"""Whole runs of networks with keyed tables: worlds, stops, votes, evictions, yesterday's keys."""

import re

import pytest
import torch
from safetensors.torch import load_file

import drivetrain
from conftest import run_under_supervisor, tensors, trace
from drivetrain.engine.tables.keys import COUNT, KEY, LAST
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from own_tables import keyed_recipe

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("forked", "importable"),
]

TWO, FOUR = ("launch.processes=2",), ("launch.processes=4",)
BY_ROWS = ('embeddings.hold={".*": row}',)
WHOLE = ('embeddings.hold={".*": table}',)
EXACT = {
    "exact": True,
    "batch": {"size": 16, "micro": 2},
    "schedule": {"kind": "cosine", "warmup": {"steps": 4}},
    "average": {"decay": 0.9},
}
KEYS = "networks/model/embeddings.keys_{}"


def records(run, kind):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == kind]


def losses(run):
    return [record["losses"]["loss"] for record in records(run, "step")]


def lines(run, table, kind="keys"):
    """By key, how often it was seen and when last."""
    found = tensors(run)[f"networks/model/embeddings.{kind}_{table}"]
    return {line[KEY]: (line[COUNT], line[LAST]) for line in found.tolist() if line[KEY] >= 0}


def require_same_bits(run, other):
    assert trace(run)[1:] == trace(other)[1:]
    found, wanted = tensors(run), tensors(other)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process comes to, exactly: keys come in, wait and lose their rows, and step 3 is left out."""
    run = tmp_path_factory.mktemp("one") / "run"
    assert run_under_supervisor(keyed_recipe(**EXACT), run).code is Exit.DONE
    assert [record["step"] for record in records(run, "step") if record.skipped] == [3]
    return run


def test_exact_runs_with_keyed_tables_have_the_same_bits_on_two_processes(one, tmp_path):
    assert run_under_supervisor(keyed_recipe(**EXACT), tmp_path / "run", *TWO, *BY_ROWS).code is Exit.DONE
    require_same_bits(tmp_path / "run", one)


def test_stops_within_eviction_intervals_and_other_holders_and_worlds_change_no_bit(one, tmp_path):
    run = tmp_path / "run"
    for asked, steps in (((), 7), ((*TWO, *WHOLE), 6), (FOUR, 9)):
        assert run_under_supervisor(keyed_recipe(**EXACT), run, *asked, most_steps=steps).code is Exit.STOPPED
    assert run_under_supervisor(keyed_recipe(**EXACT), run).code is Exit.DONE
    require_same_bits(run, one)


def test_keys_came_and_went_and_waited(one):
    """What the tests beside this one compare."""
    rows, waiting = lines(one, "users"), lines(one, "users", "waiting")
    assert rows
    assert waiting
    assert not rows.keys() & waiting.keys()
    assert all(count >= 2 for count, _ in rows.values())
    assert lines(one, "items", "waiting")
    for table in ("users", "items"):
        before = load_file(one / "checkpoints/step-00000020/tensors-00000.safetensors")[KEYS.format(table)][:, KEY]
        gone = set(before[before >= 0].tolist()) - lines(one, table).keys()
        assert gone, table


@pytest.mark.parametrize("kept", [{}, {"master": "none", "rounding": "stochastic"}], ids=["masters", "none"])
def test_rows_of_keys_in_bf16_train_and_are_resumed(tmp_path, kept):
    given = keyed_recipe(precision="bf16", parameters={"dtype": "bf16", **kept})
    for name, steps in (("whole", 6), ("parts", 3), ("parts", 3)):
        assert run_under_supervisor(given, tmp_path / name, most_steps=steps).code is Exit.STOPPED
    require_same_bits(tmp_path / "parts", tmp_path / "whole")
    assert lines(tmp_path / "whole", "users")


@pytest.mark.parametrize("asked", [(), (*TWO, *BY_ROWS)], ids=["one", "two"])
def test_a_step_that_is_left_out_lets_no_key_in_and_none_go(tmp_path, asked):
    run = tmp_path / "run"
    assert run_under_supervisor(keyed_recipe(), run, *asked, most_steps=2).code is Exit.STOPPED
    before = tensors(run)
    assert run_under_supervisor(keyed_recipe(), run, *asked, most_steps=1).code is Exit.STOPPED
    assert [record["step"] for record in records(run, "step") if record.skipped] == [3]
    after = tensors(run)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_keys_with_weighed_losses_are_exact_over_a_bad_sample_and_a_last_step_that_few_have(tmp_path):
    own = {"exact": True, "batch": {"size": 16, "micro": 2}, "budget": {"epochs": 1}}
    given = keyed_recipe("OddTorn", **own, evaluate={"every": None}, checkpoint={"every": {"steps": 12}})
    worlds = {"one": (), "four": (*FOUR, *BY_ROWS)}
    for name, asked in worlds.items():
        assert run_under_supervisor(given, tmp_path / name, *asked).code is Exit.DONE
    steps = records(tmp_path / "one", "step")
    assert steps[-1]["counts"]["samples"] == 4
    assert [record["step"] for record in steps if record.skipped] != []
    require_same_bits(tmp_path / "four", tmp_path / "one")
    others = records(tmp_path / "four", "step")
    assert [record.to_json().get("weights") for record in others] == [r.to_json().get("weights") for r in steps]


def test_a_run_goes_on_with_the_keys_of_the_day_before(one, tmp_path):
    """Nothing moves but keys. Yesterday's are as old as they were: who was seen last is 0 samples old."""
    still = keyed_recipe(
        init={"from": str(one)},
        optimizer={"kind": "adamw", "lr": 0.0, "weight_decay": 0.0},
        embeddings={"optimizer": {"kind": "sgd", "lr": 0.0}},
    )
    assert run_under_supervisor(still, tmp_path / "run", *TWO, *BY_ROWS, most_steps=4).code is Exit.STOPPED
    found, wanted = tensors(tmp_path / "run"), tensors(one)
    before, after = lines(one, "users"), lines(tmp_path / "run", "users")
    assert before.keys() <= after.keys()
    assert len(after) > len(before)
    position = int(wanted["networks/model/embeddings.clock_users"])
    for key, (count, last) in before.items():
        again = after[key]
        assert again == (count, last - position) or (again[0] > count and 0 < again[1] <= 64)
    kept = (wanted[KEYS.format("users")][:, KEY] >= 0).nonzero().squeeze(1)
    rows = "networks/model/embeddings.table_users"
    assert torch.equal(found[rows][kept], wanted[rows][kept])


@pytest.mark.parametrize("asked", [(), (*TWO, *BY_ROWS)], ids=["one", "two"])
def test_a_run_that_goes_back_has_the_keys_of_one_that_never_saw_those_samples(tmp_path, asked):
    back = keyed_recipe("Odd", guard={"nonfinite": "rollback", "rollback": {"back": 3, "every": 2}})
    assert run_under_supervisor(back, tmp_path / "back", *asked, most_steps=12).code is Exit.STOPPED
    samples = [sample for record in records(tmp_path / "back", "rollback") for sample in record["samples"]]
    assert samples
    told = keyed_recipe("Odd", guard={"quarantine": samples})
    assert run_under_supervisor(told, tmp_path / "told", *asked, most_steps=12).code is Exit.STOPPED
    found, wanted = tensors(tmp_path / "back"), tensors(tmp_path / "told")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_state_of_rows_is_ignored_and_their_keys_are_not(one, tmp_path):
    run = tmp_path / "run"
    assert run_under_supervisor(keyed_recipe(), run, *TWO, most_steps=7).code is Exit.STOPPED
    before = lines(run, "items")
    assert run_under_supervisor(keyed_recipe(), run, most_steps=1, ignore=("optimizer",)).code is Exit.STOPPED
    assert before.keys() <= lines(run, "items").keys()
    assert int(tensors(run)["rows/model/embeddings.table_items/moves"]) == 1


def test_evaluation_lets_no_key_in_and_scores_as_the_finished_run_does(one):
    """Evaluations were made at steps 10, 20 and 30 of a run that scores 500 samples each time."""
    seen = sum(count for count, _ in (lines(one, "users") | lines(one, "users", "waiting")).values())
    assert seen <= 30 * 16
    last = records(one, "evaluation")[-1]["metrics"]["likes"]["loss"]
    assert drivetrain.evaluate(one).metrics["likes"]["loss"] == pytest.approx(last, rel=1e-6)


@pytest.mark.parametrize("asked", [(), (*TWO, *BY_ROWS)], ids=["one", "two"])
def test_a_full_bucket_that_nobody_has_to_leave_ends_the_run_with_its_name(tmp_path, asked):
    outcome = run_under_supervisor(keyed_recipe("Crowded"), tmp_path / "run", *asked)
    assert outcome.code is Exit.BAD_RECIPE
    assert re.match(r"table 'users': bucket \d+ of 64 is full, it has 1 keys", outcome.cause)


def test_a_negative_key_is_bad_data(tmp_path):
    outcome = run_under_supervisor(keyed_recipe("Negative"), tmp_path / "run")
    assert outcome.code is Exit.BAD_DATA
    assert re.match(r"feature 'user': -\d+ is no key of table 'users'", outcome.cause)
