"""Whole runs whose blocks are compiled: the same bits whatever the compiler finds made, on every mesh."""

import os
from math import prod

import pytest

import compiled
import sliced
from conftest import run_under_supervisor, trace
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked", "importable"),
]

MESHES = {
    "replicate": {"replicate": 2},
    "shard": {"shard": 2},
    "tensor": {"tensor": 2, "sequence": "false"},
    "pipeline": {"pipeline": 2},
    "replicate x shard": {"replicate": 2, "shard": 2},
    "shard x tensor": {"shard": 2, "tensor": 2, "sequence": "false"},
    "pipeline x tensor": {"pipeline": 2, "tensor": 2, "sequence": "false"},
}
SAMPLE = list(MESHES) if "DRILL" in os.environ else ["replicate", "shard", "tensor", "pipeline"]
drilled = pytest.mark.skipif("DRILL" not in os.environ, reason="make drill-meshes")


def run_of(folder, *overrides, worker="compiled:warm", **options):
    return run_under_supervisor(compiled.recipe(), folder, *overrides, worker=worker, **options)


def of_kind(run, kind):
    return [record for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == kind]


def graphs(run):
    """Of each graph, the step, what the process was at, and why it was made."""
    return [(each["step"], each["phase"], each["why"]) for each in read(run / "ledger.jsonl") if each.kind == "compile"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled") / "run"
    assert run_of(folder).code is Exit.DONE
    return folder


def test_equal_blocks_have_one_graph_and_the_ledger_tells_each(whole):
    records = of_kind(whole, "compile")
    found = [each for each in graphs(whole) if each[1] != "backward"]  # what is found made has its backward pass
    assert found == [(1, "forward", "first"), (3, "evaluation", "GLOBAL_STATE changed: grad_mode")]
    assert {each["modules"] for each in records} == {"model.blocks.*"}
    assert all(each["function"].endswith(" forward") and "compiled.py:" in each["function"] for each in records)
    spent = of_kind(whole, "exit")[-1]["seconds"]
    assert sum(each["seconds"] for each in records) == pytest.approx(spent["compile"], rel=0.3)
    assert [record for record in read(whole / "ledger.jsonl") if record.kind in ("code", "note")] == []


@drilled
def test_a_resume_that_finds_nothing_made_comes_to_the_same_bits(whole, tmp_path):
    run = tmp_path / "run"
    assert run_of(run, most_steps=3).code is Exit.STOPPED
    assert run_of(run, "evaluate.every={steps: 100}", worker="compiled:cold").code is Exit.DONE
    assert [each.cached for each in read(run / "ledger.jsonl") if each.kind == "compile"][-2:] == [False] * 2
    assert trace(run).state == trace(whole).state
    assert trace(run).losses == trace(whole).losses


@pytest.mark.parametrize("name", SAMPLE)
def test_a_mesh_with_compiled_blocks_learns_what_one_process_does(whole, tmp_path, name):
    sizes = [size for size in MESHES[name].values() if isinstance(size, int)]
    mesh = f"launch.processes={prod(sizes)}", f"parallel={MESHES[name]}".replace("'", "")
    assert run_of(tmp_path / "run", *mesh, "evaluate.every={steps: 100}").code is Exit.DONE
    losses = [[each["losses"]["loss"] for each in of_kind(run, "step")] for run in (tmp_path / "run", whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert {why for _, phase, why in graphs(tmp_path / "run") if phase != "evaluation"} == {"first"}
    if "DRILL" in os.environ:
        again = tmp_path / "again"
        assert run_of(again, *mesh, "activations=recompute", most_steps=2).code is Exit.STOPPED
        assert run_of(again, *mesh, "evaluate.every={steps: 100}", worker="compiled:cold").code is Exit.DONE
        assert trace(again) == trace(tmp_path / "run")


@drilled
def test_blocks_whose_positions_meet_are_compiled_and_learn_what_one_process_does(tmp_path):
    # Compiled both: a graph draws other numbers for dropout.
    asked = "compile={scope: block}", "evaluate.every={steps: 100}", "batch={size: 8, micro: 4}"
    for run, mesh in (("one", ()), ("pieces", ("launch.processes=2", "parallel.context=2"))):
        recipe = sliced.recipe("Parts")
        assert run_under_supervisor(recipe, tmp_path / run, *asked, *mesh, worker="compiled:warm").code is Exit.DONE
    losses = [[each["losses"]["loss"] for each in of_kind(tmp_path / run, "step")] for run in ("pieces", "one")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert {why for _, phase, why in graphs(tmp_path / "pieces") if phase != "evaluation"} == {"first"}


@drilled
@pytest.mark.parametrize("also", ["activations=recompute", "activations={'blocks.1': recompute}"])
def test_blocks_that_are_computed_again_come_to_the_same_bits(whole, tmp_path, also):
    assert run_of(tmp_path / "run", also).code is Exit.DONE
    assert trace(tmp_path / "run") == trace(whole)


@drilled
@pytest.mark.parametrize("scope", ["block", "network"])
@pytest.mark.parametrize("also", ["precision=bf16", "average={decay: 0.5}", "batch.micro=3", "parallel.replicate=1"])
def test_a_compiled_network_learns_what_it_does_without(tmp_path, also, scope):
    """With sizes 3, 3, 2 of micro-batches, and 3 and 1 in the last step, too."""
    losses = []
    for name, how in (("plain", "false"), ("compiled", f"{{scope: {scope}}}")):
        assert run_of(tmp_path / name, also, f"compile={how}").code is Exit.DONE
        losses.append([each["losses"]["loss"] for each in of_kind(tmp_path / name, "step")])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2 if "bf16" in also else 1e-5)


@drilled
def test_each_size_has_a_graph_and_many_are_told_once_unless_one_is_for_all(tmp_path):
    sizes = "batch.micro=3"
    assert run_of(tmp_path / "each", sizes, "compile.recompiles=1").code is Exit.DONE
    forward = [why for _, phase, why in graphs(tmp_path / "each") if phase == "forward"]
    assert forward[0] == "first"
    assert len(forward) == 3  # of 3, 2 and 1 samples
    assert all("size mismatch at index 0" in why for why in forward[1:])
    (note,) = [each["text"] for each in of_kind(tmp_path / "each", "note") if "compile:" in each["text"]]
    assert "model.blocks.*" in note
    assert "more than 1 times in forward passes" in note
    assert run_of(tmp_path / "all", sizes, "compile.dynamic=true").code is Exit.DONE
    assert len([each for each in graphs(tmp_path / "all") if each[1] == "forward"]) < 3
