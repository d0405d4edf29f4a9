"""Whole runs where tensors are cut: stops, flipped bits, undone steps, evaluations, and what is claimed."""

import json

import pytest
import torch

from conftest import run_under_supervisor, tensors, trace
from drivetrain.data.order import Order
from drivetrain.ledger.ledger import read
from drivetrain.run.restored import WHOLE
from drivetrain.spec.exits import Exit

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

SHARDS = ("launch.processes=2", "parallel.shard=2")
GROUPS = ("launch.processes=4", "parallel.replicate=2", "parallel.shard=2")
PARTS = ("launch.processes=2", "parallel.tensor=2")
STAGES = ("launch.processes=2", "parallel.pipeline=2", "task.model.depth=2")
PIECES = ("launch.processes=2", "parallel.context=2")


def records(run, kind):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == kind]


@pytest.mark.parametrize("mesh", [SHARDS, PARTS, STAGES, PIECES], ids=["shard", "tensor", "pipeline", "context"])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits_and_unpickles_nothing(tiny, tmp_path, mesh, importable):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_under_supervisor(tiny, whole, *mesh).code is Exit.DONE
    watched = {"worker": "meshed:watched"}
    assert run_under_supervisor(tiny, parts, *mesh, most_steps=7, **watched).code is Exit.STOPPED
    looked_up = unpickled(parts)
    # With other activations: what is computed again comes to the same.
    assert run_under_supervisor(tiny, parts, *mesh, "activations=selective", **watched).code is Exit.DONE
    assert looked_up + unpickled(parts) == [[], []] * 2
    assert trace(parts) == trace(whole)
    claims = {json.dumps(record["claim"]) for record in records(parts, "attempt")}
    assert len(claims) == 1


def unpickled(run):
    """By rank, the classes that were looked up for a pickle in its newest attempt."""
    return [json.loads(path.read_text()) for path in sorted(run.glob("unpickled-*.json"))]


@pytest.mark.parametrize(
    "mesh", [SHARDS, PARTS, GROUPS, STAGES], ids=["shard", "tensor", "replicate x shard", "pipeline"]
)
def test_initial_weights_are_the_same_bits_on_every_mesh(tiny, tmp_path, mesh):
    # So that a commit has what training began with.
    still = ("optimizer.lr=0", "optimizer.weight_decay=0", "task.model.depth=2")
    for run, asked in (("one", ()), ("mesh", mesh)):
        assert run_under_supervisor(tiny, tmp_path / run, *still, *asked, most_steps=1).code is Exit.STOPPED
    one, found = tensors(tmp_path / "one"), tensors(tmp_path / "mesh")
    names = [name for name in one if name.startswith("networks/")]
    assert len(names) > 5
    assert all(torch.equal(found[name], one[name]) for name in names)
    assert WHOLE not in [note["text"] for note in records(tmp_path / "mesh", "note")]


def test_another_mesh_goes_on_with_the_same_samples_under_another_claim(tiny, tmp_path):
    one, run = tmp_path / "one", tmp_path / "run"
    assert run_under_supervisor(tiny, one).code is Exit.DONE
    assert run_under_supervisor(tiny, run, *SHARDS, most_steps=4).code is Exit.STOPPED
    assert run_under_supervisor(tiny, run, *PARTS, most_steps=4).code is Exit.STOPPED
    assert run_under_supervisor(tiny, run).code is Exit.DONE
    assert [record["samples"] for record in records(run, "step")] == [
        record["samples"] for record in records(one, "step")
    ]
    claims = [record["claim"]["key"] for record in records(run, "attempt")]
    assert len(set(claims)) == 3
    scores = [[record["metrics"] for record in records(each, "evaluation")][-1]["dogs"]["loss"] for each in (one, run)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


def flipped(tmp_path) -> dict:
    return {
        "name": "flipped",
        "task": {"kind": "flips:Flipped", "seen": str(tmp_path), "rank": 3},
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 20},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "checkpoint": {"every": {"steps": 5}, "blocking": True},
        "guard": {"replicas": {"steps": 1}},
        "launch": {"threads": 1, "restarts": 0},
    }


def test_n04_a_bit_that_flips_in_one_copy_of_a_part_names_who_holds_it(tmp_path, importable):
    """Ranks 1 and 3 hold the second half of each tensor; 0 and 2 have nothing to say about it."""
    outcome = run_under_supervisor(flipped(tmp_path), tmp_path / "run", *GROUPS)
    assert outcome.code is Exit.CORRUPTION_SUSPECTED
    assert outcome.cause.startswith("networks/model/0.weight is not the same on all ranks after step 7")
    assert outcome.where["rank"] == [1, 3]
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept == ["step-00000005"]


def test_a_bad_step_is_undone_on_all_ranks_of_a_mesh(tmp_path, importable):
    recipe = flipped(tmp_path) | {
        "task": {"kind": "guarded:Still", "nan": [100, 101]},
        "guard": {"nonfinite": "rollback", "rollback": {"back": 2, "every": 1}},
    }
    found = []
    for name, mesh in (("one", ()), ("mesh", SHARDS)):
        assert run_under_supervisor(recipe, tmp_path / name, *mesh).code is Exit.DONE
        found.append([(each["step"], each["to"], each["samples"]) for each in records(tmp_path / name, "rollback")])
    assert found[0], "there is a bad step"
    assert found[0] == found[1]


def ragged(tmp_path, nan: int, **guard) -> dict:
    """Four steps of two micro-batches, one for each of two ranks, and one of which the second rank has nothing."""
    return flipped(tmp_path) | {
        "task": {"kind": "guarded:Still", "nan": [nan]},
        "lanes": 2,
        "batch": {"size": 4, "micro": 2},
        "budget": {"samples": 18},
        "guard": guard,
    }


@pytest.mark.parametrize(
    "guard", [{"nonfinite": "skip"}, {"nonfinite": "rollback", "rollback": {"back": 1, "every": 1}}]
)
def test_what_was_not_finite_is_in_no_later_pass_of_a_rank_without_samples(guard, tmp_path, importable):
    """It has to make a pass beside the other rank, and no weight makes up for a NaN."""
    at = 14  # the second rank's, in the last whole step; a run that goes back makes that step of the first rank's alone
    bad, beside = map(int, Order(240, 0, True).ids(at, at + 2))
    recipe, made = ragged(tmp_path, bad, **guard), []
    for name, mesh in (("one", ()), ("mesh", SHARDS)):
        assert run_under_supervisor(recipe, tmp_path / name, *mesh).code is Exit.DONE
        steps = [(each["step"], each["samples"], each.skipped) for each in records(tmp_path / name, "step")]
        undone = [(each["step"], each["to"], each["samples"]) for each in records(tmp_path / name, "rollback")]
        made.append((steps, undone))
    assert made[1] == made[0]
    steps, undone = made[0]
    if guard["nonfinite"] == "skip":
        assert [skipped for *_, skipped in steps] == [None, None, None, {"model": "not finite"}, None]
    else:
        assert undone == [(4, 3, [bad, beside])]


def test_a_block_that_ranks_skip_at_different_times_ends_as_a_hang(tmp_path, importable):
    """The first rank in its first micro-batch, the second in its last: each waits for what the other does not send."""
    places = Order(240, 0, True).ids(8, 16).tolist()  # of step 2: the first one may take long, as it may compile
    recipe = flipped(tmp_path) | {
        "task": {"kind": "guarded:Skipped", "begin": [places[0], places[6]]},
        "guard": {},
        "launch": {"threads": 1, "restarts": 0, "hang_after": 2},
    }
    outcome = run_under_supervisor(recipe, tmp_path / "run", *SHARDS)
    assert outcome.code is Exit.HANG
    assert outcome.where["step"] == 2
