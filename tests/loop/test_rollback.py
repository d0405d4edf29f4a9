"""Steps that are undone without a restart: afterwards the run is the one that was told to leave the samples out."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from conftest import run_under_supervisor, trace
from drills.fault import ALL, Fault
from drills.runs import drill, reference
from drivetrain.checkpoint.snapshot import Arena
from drivetrain.checkpoint.state import capture, put_back
from drivetrain.cli.main import run as main
from drivetrain.data.order import Order
from drivetrain.launch.inbox import post
from drivetrain.ledger.derive import buckets, lineage
from drivetrain.ledger.ledger import read
from drivetrain.loop.guard import Guard, GuardState, Undone
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Guard as Settings
from drivetrain.loop.recipe import Rollback
from drivetrain.loop.rollback_buffer import RollbackBuffer
from drivetrain.loop.state import StateValues
from drivetrain.run.proof import prove
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from engines import build, mean_loss, micros, minimize, weights
from records import of_kind

pytestmark = pytest.mark.usefixtures("forked")

BATCH = 8


def recipe(task=None, guard=None, processes=1, **changes) -> dict:
    base = {
        "name": "undone",
        "task": {"kind": "guarded:Fit"} | (task or {}),
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 4,
        "batch": {"size": BATCH, "micro": 2},
        "budget": {"steps": 24},
        "optimizer": {"kind": "adamw", "lr": 0.01, "clip": 1.0},
        "checkpoint": {"every": {"steps": 20}},
        "guard": guard or {},
        "launch": {"threads": 1, "processes": processes},
    }
    return base | changes


def ids_of(step: int, first: int = 0, last: int = BATCH) -> list[int]:
    """The samples at these places of a step."""
    return Order(240, 0, True).ids((step - 1) * BATCH + first, (step - 1) * BATCH + last).tolist()


def outcome(run):
    """Every bit that a later step depends on, and the numbers of every step of the history that counts."""
    commit = max((run / "checkpoints").glob("step-*"))
    tensors = {}
    for path in sorted(commit.glob("*.safetensors")):
        tensors |= load_file(path)
    made = [r for r in lineage(read(run / "ledger.jsonl")) if r["kind"] == "step"]
    names = ("step", "start", "stop", "samples", "losses", "counts", "norm", "lr", "skipped", "scale")
    bits = {name: tensor.contiguous().reshape(-1).view(torch.uint8).tolist() for name, tensor in tensors.items()}
    return bits, [{name: record.get(name) for name in names} for record in made]


LAW = {
    "one": recipe({"nan": ids_of(7, 1, 2)}),
    "gradients": recipe({"inf": ids_of(7, 1, 2)}),
    "one micro-batch": recipe({"nan": ids_of(7, 1, 2)}, batch={"size": BATCH, "micro": 8}),
    "two networks": recipe({"kind": "guarded:Two", "nan": ids_of(8, 5, 6)}),
    "average": recipe({"nan": ids_of(7, 1, 2)}, average={"decay": 0.9}),
    "twice": recipe({"nan": [*ids_of(7, 1, 2), *ids_of(13, 6, 7)]}),
    "first step": recipe({"nan": ids_of(1, 0, 1)}),
    "last step": recipe({"nan": ids_of(24, 0, 1)}),
    "workers": recipe({"nan": ids_of(7, 1, 2)}),
    "momentum": recipe({"nan": ids_of(7, 1, 2)}, optimizer={"kind": "sgd", "lr": 0.01, "momentum": 0.9}),
}
LAW["workers"]["data"]["train"]["workers"] = 1


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", LAW)
def test_a_run_that_went_back_is_the_one_whose_recipe_leaves_the_samples_out(tmp_path, name, processes):
    settings = {"nonfinite": "rollback", "rollback": {"back": 3, "every": 2}}
    wanted = LAW[name] | {"guard": settings, "launch": {"threads": 1, "processes": processes}}
    assert run_under_supervisor(wanted, tmp_path / "run").code is Exit.DONE
    found = of_kind(tmp_path / "run", "rollback")
    samples = [sample for record in found for sample in record["samples"]]
    assert set(wanted["task"].get("nan", []) + wanted["task"].get("inf", [])) <= set(samples)
    assert len(samples) == len(found) * (8 if wanted["batch"]["micro"] == 8 else 2) // (
        processes if wanted["batch"]["micro"] == 8 else 1
    )
    assert all(record["to"] < record["step"] and "not finite" in record["why"] for record in found)
    told = wanted | {"guard": {"quarantine": samples}}
    assert run_under_supervisor(told, tmp_path / "told").code is Exit.DONE
    assert not of_kind(tmp_path / "told", "rollback")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "told")
    assert prove(tmp_path / "run").steps == 24
    assert of_kind(tmp_path / "run", "attempt") != []
    assert len(of_kind(tmp_path / "run", "attempt")) == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_n03_a_spike_is_undone_and_all_of_its_step_left_out(tmp_path, processes, capsys):
    spike = {"window": 8, "deviations": 50.0, "action": "rollback"}
    task = {"spike": ids_of(12, 1, 2)}
    wanted = recipe(task, {"spike": spike, "rollback": {"back": 4, "every": 3}}, processes)
    assert run_under_supervisor(wanted, tmp_path / "run").code is Exit.DONE
    (found,) = of_kind(tmp_path / "run", "rollback")
    assert (found["step"], found["to"], found["samples"]) == (12, 6, ids_of(12))
    assert "is above" in found["why"]
    assert main(["data", "inspect", str(tmp_path / "run"), "--position", "87", "--count", "2", "--json"]) == 0
    assert [sample["quarantined"] for sample in json.loads(capsys.readouterr().out)] == [False, True]
    told = recipe(task, {"spike": spike, "quarantine": ids_of(12)}, processes)
    assert run_under_supervisor(told, tmp_path / "told").code is Exit.DONE
    assert outcome(tmp_path / "run") == outcome(tmp_path / "told")
    assert outcome(tmp_path / "run")[1][11]["skipped"] == {"model": "quarantined"}


def test_in_exact_mode_any_number_of_processes_goes_back_to_the_same_bits(tmp_path):
    found = []
    for processes in (1, 2, 4):
        guard = {"nonfinite": "rollback", "rollback": {"back": 3, "every": 2}}
        bad = {"kind": "guarded:Still", "nan": [*ids_of(7, 1, 2), *ids_of(13, 6, 7)]}
        run = tmp_path / str(processes)
        assert run_under_supervisor(recipe(bad, guard, processes, exact=True), run).code is Exit.DONE
        found.append((trace(run), [(r["step"], r["to"], r["samples"]) for r in of_kind(run, "rollback")]))
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) == 2


def test_a_run_goes_back_at_most_to_its_last_commit(tmp_path):
    guard = {"nonfinite": "rollback", "rollback": {"back": 10, "every": 1}}
    wanted = recipe({"nan": ids_of(7, 1, 2)}, guard, checkpoint={"every": {"steps": 5}})
    assert run_under_supervisor(wanted, tmp_path / "run").code is Exit.DONE
    (found,) = of_kind(tmp_path / "run", "rollback")
    assert (found["step"], found["to"]) == (7, 5)
    assert prove(tmp_path / "run").commits > 0


def test_what_was_set_while_it_trained_is_not_undone(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    post(run, Command("set", "optimizer.lr=0.02"))
    wanted = recipe({"nan": ids_of(7, 1, 2)}, {"nonfinite": "rollback"}, schedule={"kind": "constant"})
    assert run_under_supervisor(wanted, run).code is Exit.DONE
    (command,) = of_kind(run, "command")
    (found,) = of_kind(run, "rollback")
    assert found["to"] >= command["step"] or command["step"] > 7
    assert {
        r["lr"]["model"]
        for r in lineage(read(run / "ledger.jsonl"))
        if r.get("step", 0) > command["step"] and "lr" in r
    } == {0.02}
    assert prove(run).steps == 24


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Runs that nobody stops or kills, by the number of processes."""
    runs = {processes: tmp_path_factory.mktemp("undisturbed") / "run" for processes in (1, 2)}
    for processes, run in runs.items():
        reference(twice(processes), run)
    return runs


def twice(processes: int) -> dict:
    guard = {"nonfinite": "rollback", "rollback": {"back": 3, "every": 2}}
    bad = {"nan": [*ids_of(7, 1, 2), *ids_of(13, 6, 7)]}
    return recipe(bad, guard, processes, checkpoint={"every": {"steps": 5}})


@pytest.mark.xdist_group("undisturbed")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("at", [6, 7, 9, 13, 16])
def test_a_stop_or_a_kill_at_any_point_changes_no_bit(tmp_path, undisturbed, at, processes):
    """Stopped at a step; then, as after a kill, the newest commit is lost: the ledger knows what went wrong."""
    run, straight = tmp_path / "run", undisturbed[processes]
    stopped = run_under_supervisor(twice(processes) | {"stop": {"at": [at]}}, run)
    assert stopped.code is Exit.STOPPED
    shutil.rmtree(max((run / "checkpoints").glob("step-*")))
    assert run_under_supervisor(twice(processes), run).code is Exit.DONE
    assert trace(run) == trace(straight)
    assert [(r["step"], r["samples"]) for r in of_kind(run, "rollback")] == [
        (r["step"], r["samples"]) for r in of_kind(straight, "rollback")
    ]
    assert prove(run).steps == 24


@pytest.mark.xdist_group("undisturbed")
@pytest.mark.parametrize(
    "fault",
    [
        Fault("kill", 0, "rollback", 7),
        Fault("kill", 1, "rollback", 7),
        Fault("kill", ALL, "rollback", 13),
        Fault("kill", 1, "optimizer", 6, after=1),
        Fault("kill", 0, "pulse", 7, after=1),
        Fault("kill", ALL, "forward", 8),
    ],
    ids=lambda fault: f"{fault.phase}-{fault.step}-of-{fault.rank}",
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_kill_before_in_or_after_a_rollback_changes_no_bit(tmp_path, undisturbed, fault, processes):
    if fault.rank == 1 and processes == 1:
        pytest.skip("there is no second process")
    drilled = drill(twice(processes), tmp_path / "run", fault)
    assert drilled.outcome.code is Exit.DONE
    assert (tmp_path / "run" / "struck-at").is_file()
    assert drilled.starts in (1, 2)  # it may have died before the disk had the first start's record
    assert drilled.trace == trace(undisturbed[processes])
    assert prove(tmp_path / "run").steps == 24


@pytest.mark.parametrize(
    ("bad", "settings", "said"),
    [((4, 5, 6), {"in_a_row": 2}, "in a row"), ((4, 8, 12), {"in_all": 2}, "in_all")],
)
def test_rollbacks_are_bounded(tmp_path, bad, settings, said):
    task = {"nan": [ids_of(step, 1, 2)[0] for step in bad]}
    ended = run_under_supervisor(recipe(task, {"nonfinite": "rollback", **settings}), tmp_path / "run")
    assert ended.code is Exit.DIVERGED
    assert said in ended.cause
    assert ended.where["step"] == bad[-1]
    assert set(ids_of(bad[-1], 1, 2)) <= set(ended.where["sample_ids"])
    assert [record["step"] for record in of_kind(tmp_path / "run", "rollback")] == list(bad[:-1])


def test_a_way_back_that_nothing_takes_is_a_mistake():
    with pytest.raises(Failure, match="guard: rollback: nothing goes back"):
        load(recipe(guard={"nonfinite": "skip", "rollback": {"back": 3}}))


def test_time_of_what_was_undone_is_lost_work(tmp_path):
    wanted = recipe({"nan": ids_of(7, 1, 2)}, {"nonfinite": "rollback"})
    assert run_under_supervisor(wanted, tmp_path / "run").code is Exit.DONE
    spent = buckets(read(tmp_path / "run" / "ledger.jsonl"))
    assert spent["lost work"] > 0
    assert spent["rollback"] > 0


def test_evaluations_and_early_stopping_forget_what_was_undone(tmp_path):
    wanted = recipe({"nan": ids_of(7, 1, 2)}, {"nonfinite": "rollback", "rollback": {"back": 5, "every": 1}})
    wanted["data"]["validation"] = {"same": {"kind": "guarded:Rows"}}
    wanted["evaluate"] = {"every": {"steps": 3}}
    wanted["telemetry"] = {"every": {"steps": 1}}
    assert run_under_supervisor(wanted, tmp_path / "run").code is Exit.DONE
    (found,) = of_kind(tmp_path / "run", "rollback")
    assert found["to"] == 2
    history = lineage(read(tmp_path / "run" / "ledger.jsonl"))
    assert [r["step"] for r in history if r["kind"] == "evaluation"] == [3, 6, 9, 12, 15, 18, 21, 24]
    assert [r["step"] for r in history if r["kind"] == "telemetry"] == list(range(1, 25))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 60), st.sets(st.integers(1, 60), max_size=4))
def test_the_ring_goes_back_as_far_as_it_should_and_keeps_no_more(back, every, bad, commits):
    ring = RollbackBuffer(Rollback(back=back, every=every))
    earliest = 0
    for step in range(bad):
        if step in commits:
            ring.clear()
            earliest = step
        if ring.due(step):
            ring.keep(StateValues(Progress(step)), {})
    there = [step for step in range(earliest, bad) if step == earliest or step % every == 0]
    wanted = max([step for step in there if step <= bad - back], default=earliest)
    assert len(ring.steps) <= -(-back // every) + 1
    assert ring.before(bad).values.progress.step == wanted
    assert ring.steps[-1] == wanted


def test_everything_is_put_back_and_what_has_begun_since_is_forgotten():
    engine = build(names=("model", "other"))
    engine.networks["model"][0].weight.data = engine.networks["model"][0].weight.data.T.contiguous().T
    arena = Arena()
    pieces = arena.take(capture(engine.networks, engine.optimizers))
    before = weights(engine)
    minimize(engine, mean_loss, micros(4))
    minimize(engine, lambda nets, batch: nets["other"](batch).square().mean(), micros(4), names=("other",))
    after = weights(engine)
    put_back(pieces, engine.networks, engine.optimizers)
    assert torch.equal(weights(engine), before)
    assert capture(engine.networks, engine.optimizers).keys() == {piece.name for piece in pieces}
    minimize(engine, mean_loss, micros(4))
    assert torch.equal(weights(engine), after)


@pytest.mark.parametrize("name", ["networks/model/0.weight", "optimizers/model/2.bias/exp_avg"])
def test_a_bit_that_flips_in_the_ring_is_found(name):
    engine, ring = build(), RollbackBuffer(Rollback())
    minimize(engine, mean_loss, micros(4))
    ring.keep(StateValues(Progress(4)), capture(engine.networks, engine.optimizers))
    boundary = ring.before(5)
    put_back(boundary.pieces, engine.networks, engine.optimizers)
    next(piece for piece in boundary.pieces if piece.name == name).data[3] ^= 1
    with pytest.raises(Failure, match=f"the copy of {name} has changed in memory"):
        put_back(boundary.pieces, engine.networks, engine.optimizers)


def test_what_was_undone_is_known_from_the_ledger_too_and_once():
    undone = Undone(7, 4, (3, 9))
    guard = Guard(
        Settings(nonfinite="rollback"),
        GuardState.from_json({"undone": [[7, 4, [3, 9]]]}),
        undone=[undone, Undone(9, 8, (1,))],
    )
    assert guard.undone == [undone, Undone(9, 8, (1,))]
    assert guard.quarantine.entries == ((5, (3, 9)), (9, (1,)))
