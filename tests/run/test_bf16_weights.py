"""Runs with bf16 weights, from a recipe: resumed, on two processes, evaluated, exported, and begun from others."""

import pytest
import torch
from safetensors.torch import load_file

from conftest import tensors, trace
from drills.fault import Fault
from drills.runs import drill, one_server, reference
from drivetrain.spec.exits import Exit

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]

KEPT = {
    "masters": {"dtype": "bf16"},
    "masters, by chance": {"dtype": "bf16", "rounding": "stochastic"},
    "none, by chance": {"dtype": "bf16", "master": "none", "rounding": "stochastic"},
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_run_that_is_stopped_and_resumed_has_the_same_bits(place, kept):
    place.write(parameters=KEPT[kept], precision="bf16", average={"decay": 0.9})
    assert place.train("straight") == Exit.DONE, place.err
    assert place.train("cut", "--steps", 5) == Exit.STOPPED, place.err
    assert place.train("cut") == Exit.DONE, place.err
    assert trace(place.folder / "cut") == trace(place.folder / "straight")
    held = tensors(place.folder / "cut")
    kinds = {name.partition("/")[0] for name in held}
    assert ("masters" in kinds) == (kept != "none, by chance")
    for name, tensor in held.items():
        if name.startswith("networks/"):
            assert tensor.dtype == torch.bfloat16, name
        elif tensor.ndim:
            assert tensor.dtype == torch.float32, name
        if name.startswith("masters/") and kept == "masters":
            assert torch.equal(tensor.bfloat16(), held[name.replace("masters", "networks", 1)])


def test_survivors_hand_masters_over(tiny, tmp_path):
    recipe = tiny | {"precision": "bf16", "parameters": KEPT["masters, by chance"], "checkpoint": {"every": None}}
    with one_server():
        expected = reference(recipe, tmp_path / "straight", "launch.processes=2")
        found = drill(recipe, tmp_path / "killed", Fault("kill", 1, "backward", 9), "launch.processes=2")
    assert found.trace == expected
    assert found.lost <= 1


def test_two_processes_come_to_what_one_does(place):
    """Exact mode sums gradients in one order: then nothing else may differ."""
    place.write(parameters=KEPT["masters"], precision="bf16", exact=True)
    assert place.train("one") == Exit.DONE, place.err
    assert place.train("two", "launch.processes=2") == Exit.DONE, place.err
    assert trace(place.folder / "two") == trace(place.folder / "one")


def test_the_weights_of_another_run_are_rounded_and_its_masters_are_as_they_were(place):
    place.write()
    assert place.train("fp32", "--steps", 5) == Exit.STOPPED, place.err
    place.write(precision="bf16", init={"from": str(place.folder / "fp32")}, schedule={"kind": "constant"})
    still = ("optimizer.lr=0", "optimizer.weight_decay=0", "--steps", 1)
    assert place.train("bf16", *still, "parameters.dtype=bf16") == Exit.STOPPED, place.err
    assert place.train("none", *still, "parameters={dtype: bf16, master: none, rounding: stochastic}") == Exit.STOPPED
    before, masters, none = (tensors(place.folder / run) for run in ("fp32", "bf16", "none"))
    for name, tensor in before.items():
        if name.startswith("networks/"):
            assert torch.equal(masters[name.replace("networks", "masters", 1)], tensor), name
            assert torch.equal(masters[name], tensor.bfloat16()), name
            assert torch.equal(none[name], tensor.bfloat16()), name


def test_everything_that_looks_at_a_run_knows_bf16_weights(place):
    """A rehearsal, statistics, averages that are evaluated, a check of gradients, scores again, and an export."""
    place.write(
        parameters=KEPT["none, by chance"],
        precision="bf16",
        average={"decay": 0.9},
        statistics={"every": {"steps": 2}, "histograms": True},
        guard={"recompute": {"steps": 3}},
    )
    assert place.train("dry", "--steps", 0) == Exit.DONE, place.err
    assert place.train("run", "launch.processes=2") == Exit.DONE, place.err
    assert place("evaluate", "run") == Exit.DONE, place.err
    assert place("export", "run", "--to", "exported") == Exit.DONE, place.err
    (file,) = (place.folder / "exported").rglob("*.safetensors")
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}


def test_a_recipe_on_a_mesh_is_stopped_resumed_and_goes_on_alone(place):
    place.write(parameters=KEPT["masters, by chance"], precision="bf16", average={"decay": 0.9})
    mesh = ("launch.processes=2", "parallel.shard=2")
    assert place.train("straight", *mesh) == Exit.DONE, place.err
    assert place.train("cut", *mesh, "--steps", 5) == Exit.STOPPED, place.err
    assert place.train("cut", *mesh) == Exit.DONE, place.err
    assert trace(place.folder / "cut") == trace(place.folder / "straight")
    assert place.train("alone", *mesh, "--steps", 5) == Exit.STOPPED, place.err
    assert place.train("alone") == Exit.DONE, place.err
    assert place("evaluate", "alone") == Exit.DONE, place.err
