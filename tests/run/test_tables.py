"""Whole runs of networks with embedding tables: stops, other worlds and holders, votes, what is claimed."""

import re

import numpy as np
import pytest
import torch

from conftest import run_under_supervisor, tensors, trace
from drivetrain.launch.inbox import post
from drivetrain.ledger.ledger import read
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit
from own_tables import recipe

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("forked", "importable"),
]

TWO, FOUR = ("launch.processes=2",), ("launch.processes=4",)
EACH = ('embeddings.hold={".*": each}',)
BY_ROWS = ('embeddings.hold={".*": row}',)
SHARDS = (*TWO, *BY_ROWS, "parallel.shard=2", "parallel.replicate=1")
BOTH = (*FOUR, "parallel.shard=2", "parallel.replicate=2")
SOME = ('embeddings.hold={"items": each, "users": row}',)
WHOLE = ('embeddings.hold={".*": table}',)


def records(run, kind):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == kind]


def require_same_bits(run, other):
    """Files differ where others hold the rows; tensors, losses, norms and samples do not."""
    assert trace(run)[1:] == trace(other)[1:]
    found, wanted = tensors(run), tensors(other)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def losses(run):
    return [record["losses"]["loss"] for record in records(run, "step")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Runs that nobody stops, by what is asked for."""
    found = {}

    def run_of(*asked):
        if asked not in found:
            found[asked] = tmp_path_factory.mktemp("straight") / "run"
            assert run_under_supervisor(recipe(), found[asked], *asked).code is Exit.DONE
        return found[asked]

    return run_of


@pytest.fixture(scope="module")
def one(straight):
    """What one process comes to."""
    return straight()


@pytest.mark.parametrize(
    "asked",
    [(*TWO, *WHOLE), (*TWO, *BY_ROWS), FOUR, SHARDS, (*BOTH, *BY_ROWS)],
    ids=["whole", "by rows", "four", "shards", "both"],
)
def test_tables_on_several_processes_come_to_what_one_process_does(one, straight, asked):
    run = straight(*asked)
    assert len(records(run, "attempt")) == 1, (run / "exit.json").read_text()
    assert losses(run) == pytest.approx(losses(one), rel=1e-5)
    assert [r["samples"] for r in records(run, "step")] == [r["samples"] for r in records(one, "step")]
    norms = [record["norm"]["model"] for record in records(run, "step")]
    assert norms == pytest.approx([record["norm"]["model"] for record in records(one, "step")], rel=1e-4)
    found, wanted = tensors(run), tensors(one)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=1e-3, atol=1e-5), name


def test_who_holds_a_table_changes_no_bit(straight):
    for hold in (BY_ROWS, EACH, SOME):
        require_same_bits(straight(*TWO, *WHOLE), straight(*TWO, *hold))


def test_exact_runs_with_tables_have_the_same_bits_on_any_number_of_processes_whoever_holds_rows(tmp_path):
    exact = {"exact": True, "batch": {"size": 16, "micro": 2}}
    worlds = {"one": (), "two": (*TWO, *WHOLE), "rows": (*TWO, *BY_ROWS), "four": FOUR}
    for name, asked in worlds.items():
        assert run_under_supervisor(recipe(**exact), tmp_path / name, *asked, most_steps=8).code is Exit.STOPPED
    for name in ("two", "rows", "four"):
        require_same_bits(tmp_path / name, tmp_path / "one")


@pytest.mark.parametrize("asked", [(), TWO, SHARDS], ids=["one", "two", "shards"])
def test_a_run_with_tables_that_is_stopped_goes_on_to_the_same_bits(tmp_path, straight, asked):
    parts = tmp_path / "parts"
    assert run_under_supervisor(recipe(), parts, *asked, most_steps=7).code is Exit.STOPPED
    assert run_under_supervisor(recipe(), parts, *asked, *(BY_ROWS if asked else ())).code is Exit.DONE
    require_same_bits(parts, straight(*asked))


def test_any_number_of_processes_goes_on_with_anothers_tables_and_layers(one, tmp_path):
    run = tmp_path / "run"
    for asked in ((*TWO, *WHOLE), (*FOUR, *BY_ROWS), SHARDS, (*FOUR, *EACH), ()):
        assert run_under_supervisor(recipe(), run, *asked, most_steps=4).code is Exit.STOPPED
    assert run_under_supervisor(recipe(), run, *TWO).code is Exit.DONE
    assert [r["samples"] for r in records(run, "step")] == [r["samples"] for r in records(one, "step")]
    assert losses(run) == pytest.approx(losses(one), rel=1e-4)


@pytest.mark.parametrize("asked", [(), TWO, SHARDS], ids=["one", "two", "shards"])
def test_a_loss_that_is_not_finite_on_one_rank_moves_no_table_on_any(tmp_path, asked):
    skipping = ("guard.nonfinite=skip",)
    run = tmp_path / "run"
    assert run_under_supervisor(recipe("Poisoned"), run, *asked, *skipping, most_steps=2).code is Exit.STOPPED
    before = tensors(run)
    assert run_under_supervisor(recipe("Poisoned"), run, *asked, *skipping, most_steps=1).code is Exit.STOPPED
    assert [record["step"] for record in records(run, "step") if record.skipped] == [3]
    after = tensors(run)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_networks_with_tables_that_move_in_turn_come_to_what_one_process_does(tmp_path):
    turns = {"other": {"turns": [1, 2]}}
    for name, asked in (("one", ()), ("two", TWO)):
        assert run_under_supervisor(recipe("Rivals", networks=turns), tmp_path / name, *asked, most_steps=8).code == 75
    found, wanted = tensors(tmp_path / "two"), tensors(tmp_path / "one")
    assert found.keys() == wanted.keys()
    assert [int(wanted[f"rows/{name}/embeddings.table_items/moves"]) for name in ("one", "other")] == [8, 5]
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=1e-3, atol=1e-5), name
    sums = [wanted[f"rows/{name}/embeddings.table_items/sum"].sum() for name in ("one", "other")]
    assert all(total > 0 for total in sums)


def test_a_network_that_stands_still_keeps_its_tables(tmp_path):
    frozen = {"other": {"freeze": True}}
    run = tmp_path / "run"
    assert run_under_supervisor(recipe("Rivals", networks=frozen), run, most_steps=3).code is Exit.STOPPED
    first = tensors(run)
    assert run_under_supervisor(recipe("Rivals", networks=frozen), run, most_steps=3).code is Exit.STOPPED
    second = tensors(run)
    for name, tensor in first.items():
        if name.startswith("networks/"):
            assert torch.equal(second[name], tensor) == ("/other/" in name), name


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"networks": {"model": {"micro": 2}}}, "a micro of its own"),
        ({"parallel": {"tensor": 2, "replicate": 1}, "launch": {"processes": 2}}, "parallel tensor 2 does not go"),
        ({"embeddings": {"groups": [{"match": "users2", "optimizer": {"kind": "sgd"}}]}}, "'users2' takes no table"),
        ({"embeddings": {"hold": {"nothing": "row"}}}, "'nothing' takes no table"),
    ],
    ids=["micro", "mesh", "group", "hold"],
)
def test_what_tables_cannot_do_is_refused_with_its_key(tmp_path, asked, told):
    outcome = run_under_supervisor(recipe(**asked), tmp_path / "run")
    assert outcome.code is Exit.BAD_RECIPE
    assert told in outcome.cause


def test_a_network_of_tables_alone_trains_on_any_number_of_processes_to_the_same_bits(tmp_path):
    exact = {"exact": True, "batch": {"size": 16, "micro": 2}, "optimizer": {"kind": "adamw", "clip": 0.1}}
    given = recipe("Bare", **exact)
    assert run_under_supervisor(given, tmp_path / "one").code is Exit.DONE
    for asked, code in (((*TWO, *BY_ROWS), Exit.STOPPED), ((), Exit.STOPPED), ((*TWO, *WHOLE), Exit.DONE)):
        most = 9 if code is Exit.STOPPED else None
        assert run_under_supervisor(given, tmp_path / "parts", *asked, most_steps=most).code is code
    require_same_bits(tmp_path / "parts", tmp_path / "one")
    found = losses(tmp_path / "one")
    assert sum(found[-5:]) < 0.95 * sum(found[:5])
    (first, *_) = records(tmp_path / "one", "step")
    assert set(first["lr"]) == {"model/items"}
    assert all(record["norm"]["model"] > 0.1 for record in records(tmp_path / "one", "step"))


@pytest.mark.parametrize("asked", [TWO, SHARDS], ids=["two", "shards"])
def test_tables_alone_on_two_processes_come_to_what_one_does(tmp_path, asked):
    for name, own in (("one", ()), ("other", asked)):
        assert run_under_supervisor(recipe("Bare"), tmp_path / name, *own, most_steps=8).code is Exit.STOPPED
    found, wanted = tensors(tmp_path / "other"), tensors(tmp_path / "one")
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6) for name in wanted)


def test_tables_alone_go_with_bf16_rows_weighed_losses_and_networks_that_stand_still(tmp_path):
    half = recipe("BareTorn", parameters={"dtype": "bf16"}, precision="bf16", optimizer={"kind": "sgd", "clip": 1.0})
    assert run_under_supervisor(half, tmp_path / "half", *TWO, most_steps=3).code is Exit.STOPPED
    assert all(sum(weights) == pytest.approx(1.0) for weights in weighed(tmp_path / "half"))
    outcome = run_under_supervisor(recipe("Bare", networks={"model": {"freeze": True}}), tmp_path / "still")
    assert (outcome.code, outcome.cause) == (Exit.BAD_RECIPE, "no network has a parameter that trains")


def test_rates_of_rows_that_are_set_hold_from_the_next_step_on_and_after_a_resume(tmp_path):
    run, group = tmp_path / "run", {"match": "items", "optimizer": {"kind": "sgd", "lr": 1.0}}
    rows = {"optimizer": {"kind": "adagrad", "lr": 0.1}, "groups": [group]}
    given = recipe(embeddings=rows, schedule={"kind": "linear"}, stop={"at": [15]})
    run.mkdir()
    for text in ("schedule={kind: constant}", "embeddings.optimizer.lr=0.02", "embeddings.groups[0].optimizer.lr=0.5"):
        post(run, Command("set", text))
    assert run_under_supervisor(given, run, *TWO).code is Exit.STOPPED
    told = records(run, "command")
    assert [record.to_json().get("refused") for record in told] == [None] * 3
    assert run_under_supervisor(given, run).code is Exit.DONE
    after = max(record["step"] for record in told)
    assert after < 15
    wanted = {"model": 0.01, "model/users": 0.02, "model/items": 0.5}
    for record in records(run, "step"):
        assert record["lr"] == wanted if record["step"] > after else record["lr"]["model/items"] < 1.0


def test_scaled_losses_move_rows_as_unscaled_ones_do(tmp_path):
    sgd = {"optimizer": {"kind": "sgd", "lr": 0.1}, "embeddings": {"optimizer": {"kind": "sgd", "lr": 0.1}}}
    for name, start in (("scaled", 2.0**10), ("plain", 1.0)):
        given = recipe(**sgd, precision="fp16", scaling={"start": start})
        assert run_under_supervisor(given, tmp_path / name, *TWO, most_steps=5).code is Exit.STOPPED
        assert [record.scale for record in records(tmp_path / name, "step")] == [start] * 5
    found, wanted = tensors(tmp_path / "scaled"), tensors(tmp_path / "plain")
    for name in wanted:
        if not name.startswith("scaler/"):
            assert torch.allclose(found[name], wanted[name], rtol=1e-2, atol=1e-4), name
    norms = [[record["norm"]["model"] for record in records(tmp_path / name, "step")] for name in ("scaled", "plain")]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def test_an_id_beyond_its_table_is_bad_data(tmp_path):
    outcome = run_under_supervisor(recipe("Beyond"), tmp_path / "run")
    assert outcome.code is Exit.BAD_DATA
    assert re.match(r"feature 'user': id \d+ is no row of table 'users', which has 0 to 39", outcome.cause)


@pytest.mark.parametrize("asked", [(), (*TWO, *BY_ROWS)], ids=["one", "two"])
def test_tables_begin_at_those_of_another_run(one, tmp_path, asked):
    still = recipe(
        init={"from": str(one)},
        optimizer={"kind": "adamw", "lr": 0.0, "weight_decay": 0.0},
        embeddings={"optimizer": {"kind": "sgd", "lr": 0.0}},
    )
    assert run_under_supervisor(still, tmp_path / "run", *asked, most_steps=1).code is Exit.STOPPED
    found, wanted = tensors(tmp_path / "run"), tensors(one)
    names = [name for name in wanted if name.startswith("networks/")]
    assert all(torch.equal(found[name], wanted[name]) for name in names)


def test_the_state_of_rows_is_ignored_with_the_optimizers(tmp_path):
    run = tmp_path / "run"
    assert run_under_supervisor(recipe(), run, *TWO, most_steps=7).code is Exit.STOPPED
    assert run_under_supervisor(recipe(), run, *TWO, most_steps=1, ignore=("optimizer",)).code is Exit.STOPPED
    found = tensors(run)
    assert int(found["rows/model/embeddings.table_users/moves"]) == 1
    assert (found["rows/model/embeddings.table_users/sum"].sum(1) > 0).sum() <= 16


def test_micro_batches_add_up_also_in_tables(one, tmp_path):
    whole = tmp_path / "whole"
    assert run_under_supervisor(recipe(batch={"size": 16, "micro": 16}), whole).code is Exit.DONE
    assert losses(whole) == pytest.approx(losses(one), rel=1e-5)
    found, wanted = tensors(whole), tensors(one)
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-3, atol=1e-5) for name in wanted)


def test_clipping_is_by_one_norm_over_layers_and_rows(tmp_path):
    sgd = {"optimizer": {"kind": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.01}}
    sgd["embeddings"] = {"optimizer": {"kind": "sgd", "lr": 1.0}}
    for run, last in (("before", 1), ("after", 2)):
        assert run_under_supervisor(recipe(**sgd), tmp_path / run, *TWO, most_steps=last).code is Exit.STOPPED
    before, after = tensors(tmp_path / "before"), tensors(tmp_path / "after")
    moved = [after[name] - before[name] for name in before if name.startswith("networks/")]
    assert float(torch.stack([part.norm() for part in moved]).norm()) == pytest.approx(0.01, rel=1e-3)


def weighed(run):
    return [[*record["weights"].values()] for record in records(run, "step")]


def test_losses_weigh_by_whole_gradients_of_layers_and_rows_on_any_number_of_processes(tmp_path):
    sgd = {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}}
    own = recipe("Torn", **sgd, embeddings={"optimizer": {"kind": "sgd", "lr": 0.1}})
    runs = {"plain": (recipe("PlainTorn", **sgd), ()), "one": (own, ()), "two": (own, (*TWO, *BY_ROWS))}
    for name, (given, asked) in runs.items():
        assert run_under_supervisor(given, tmp_path / name, *asked, most_steps=6).code is Exit.STOPPED

    def found_in(name):
        return tensors(tmp_path / name)["networks/model/embeddings.table_users"]

    wanted = weighed(tmp_path / "plain")
    assert sum(0.1 < liked < 0.9 for liked, _ in wanted) >= 3  # most others are at a bound, which hides differences
    for name in ("one", "two"):
        assert np.allclose(weighed(tmp_path / name), wanted, rtol=1e-4)
        assert torch.allclose(found_in(name), found_in("plain"), rtol=1e-4, atol=1e-6)


def test_weighed_losses_have_the_same_bits_on_any_number_of_processes_in_exact_runs(tmp_path):
    exact = recipe("Torn", exact=True, batch={"size": 16, "micro": 2})
    for name, asked in {"one": (), "two": (*TWO, *WHOLE), "four": (*FOUR, *BY_ROWS)}.items():
        assert run_under_supervisor(exact, tmp_path / name, *asked, most_steps=4).code is Exit.STOPPED
    for name in ("two", "four"):
        assert weighed(tmp_path / name) == weighed(tmp_path / "one")
        require_same_bits(tmp_path / name, tmp_path / "one")


def test_a_rank_that_has_no_samples_in_the_last_step_passes_with_those_that_shard_layers(tmp_path):
    once = recipe(budget={"epochs": 1}, evaluate={"every": {"steps": 100}}, checkpoint={"every": {"steps": 100}})
    for name, asked in (("one", ()), ("shards", SHARDS)):
        assert run_under_supervisor(once, tmp_path / name, *asked).code is Exit.DONE
    assert records(tmp_path / "one", "step")[-1]["counts"]["samples"] == 4
    assert losses(tmp_path / "shards") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    found, wanted = tensors(tmp_path / "shards"), tensors(tmp_path / "one")
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-3, atol=1e-5) for name in wanted)


HALF = {
    "masters": {"dtype": "bf16"},
    "none, by chance": {"dtype": "bf16", "master": "none", "rounding": "stochastic"},
}


@pytest.mark.parametrize("kept", HALF)
def test_rows_in_bf16_train_are_resumed_and_whoever_holds_them_rounds_alike(tmp_path, kept):
    given = recipe(parameters=HALF[kept], precision="bf16")
    for name, asked in (("one", ()), ("two", (*TWO, *WHOLE))):
        assert run_under_supervisor(given, tmp_path / name, *asked, most_steps=12).code is Exit.STOPPED
    for hold in (BY_ROWS, WHOLE):
        assert run_under_supervisor(given, tmp_path / "parts", *TWO, *hold, most_steps=6).code is Exit.STOPPED
    require_same_bits(tmp_path / "parts", tmp_path / "two")
    found = tensors(tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=0.02)
    own = {name: tensor.dtype for name, tensor in found.items() if "table_users" in name and tensor.dim()}
    wanted = {"networks": torch.bfloat16, "rows": torch.float32}
    if kept == "masters":
        wanted["masters"] = torch.float32
        assert torch.equal(
            found["masters/model/embeddings.table_users"].bfloat16(), found["networks/model/embeddings.table_users"]
        )
    assert {name.partition("/")[0]: dtype for name, dtype in own.items()} == wanted


@pytest.mark.parametrize("asked", [(), (*TWO, *BY_ROWS)], ids=["one", "two"])
def test_masters_begin_at_those_of_the_run_whose_weights_are_loaded(tmp_path, asked):
    still = {"optimizer": {"kind": "sgd", "lr": 0.0}, "embeddings": {"optimizer": {"kind": "sgd", "lr": 0.0}}}
    first, then = tmp_path / "first", tmp_path / "then"
    half = {"parameters": HALF["masters"], "precision": "bf16"}
    assert run_under_supervisor(recipe(**half), first, most_steps=10).code is Exit.STOPPED
    again = recipe(**half, **still, init={"from": str(first)})
    assert run_under_supervisor(again, then, *asked, most_steps=1).code is Exit.STOPPED
    found, wanted = tensors(then), tensors(first)
    names = [name for name in wanted if name.startswith(("networks/", "masters/"))]
    assert "masters/model/embeddings.table_users" in names
    assert "masters/model/head.0.weight" in names
    assert all(torch.equal(found[name], wanted[name]) for name in names)
    rounded = wanted["networks/model/embeddings.table_users"].float()
    assert not torch.equal(wanted["masters/model/embeddings.table_users"], rounded)


def test_masters_of_rows_begin_at_the_weights_of_a_commit_without_them(tmp_path):
    run, kept = tmp_path / "run", {"precision": "bf16", "optimizer": {"kind": "sgd", "lr": 0.0}}
    kept["embeddings"] = {"optimizer": {"kind": "sgd", "lr": 0.0}}
    none = {"dtype": "bf16", "master": "none"}
    moved = {**kept, "embeddings": {"optimizer": {"kind": "sgd", "lr": 1.0}}}
    given = {"parameters": none, **moved}
    assert run_under_supervisor(recipe(**given), run, most_steps=4).code is Exit.STOPPED
    before = tensors(run)
    keys = ("parameters.master", "embeddings.optimizer.lr")
    given = {"parameters": HALF["masters"], **kept}
    assert run_under_supervisor(recipe(**given), run, most_steps=1, override=keys).code is Exit.STOPPED
    found, name = tensors(run), "model/embeddings.table_users"
    assert torch.equal(found[f"masters/{name}"], before[f"networks/{name}"].float())


def test_a_ranking_of_numbers_alone_goes_with_batches_by_cost_checks_of_gradients_and_scaled_losses(tmp_path):
    rows = [f"{n % 7},{n % 5},{1 + n * 5 % 9},{n % 2}\n" for n in range(300)]
    (tmp_path / "log.csv").write_text("a,b,cost,click\n" + "".join(rows))
    log = {"kind": "columns", "path": str(tmp_path / "log.csv"), "cost": {"column": "cost", "most": 9}}
    task = {"kind": "ranking", "labels": {"click": {}}, "model": {"kind": "own_tables:Numbers"}}
    task["features"] = {name: {"normalize": "identity"} for name in "ab"}
    given = recipe(data={"train": {"sources": [log]}}, batch={"size": 16, "cost": 80}, precision="fp16")
    given |= {"task": task, "budget": {"steps": 8}, "evaluate": {"every": None}, "device": "cpu"}
    given["guard"] = {"nonfinite": "rollback", "recompute": {"steps": 2}}
    for name, asked in (("one", ()), ("two", TWO)):
        assert run_under_supervisor(given, tmp_path / name, *asked).code is Exit.DONE
    read = [
        [(r["samples"], r["counts"]["samples"]) for r in records(tmp_path / name, "step")] for name in ("one", "two")
    ]
    assert read[0] == read[1]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-2)
