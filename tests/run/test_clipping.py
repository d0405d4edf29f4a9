"""Clipping by value: as torch's, after the norm was taken, the same on any number of processes."""

import json

import pytest
import torch
from torch import nn

from conftest import trace
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import AdamW, ClipByValue, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]

OPTIMIZERS = {
    "adamw": {"kind": "adamw", "lr": 1e-2},
    "own": {"kind": "torch.optim:SGD", "lr": 1e-1, "momentum": 0.9},
    "muon": {"kind": "muon", "lr": 1e-2},
}
SMALL = {"value": 1e-3}


def norms(place, run):
    return [step.norm["model"] for step in steps(lineage(read(place.folder / run / "ledger.jsonl")))]


def losses(place, run):
    return [step.losses["loss"] for step in steps(lineage(read(place.folder / run / "ledger.jsonl")))]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_clipped_by_value_is_the_same_on_one_and_two_processes_and_after_a_stop(place, kind):
    place.write(optimizer=OPTIMIZERS[kind] | {"clip": SMALL}, exact=True)
    assert place.train("one") == Exit.DONE, place.err
    assert place.train("two", "launch.processes=2", "--steps", 5) == Exit.STOPPED, place.err
    assert place.train("two") == Exit.DONE, place.err
    assert trace(place.folder / "two") == trace(place.folder / "one")
    place.write(optimizer=OPTIMIZERS[kind] | {"clip": None}, exact=True)
    assert place.train("whole") == Exit.DONE, place.err
    assert norms(place, "one")[0] == norms(place, "whole")[0], "the norm is that before clipping"
    assert norms(place, "one")[-1] != norms(place, "whole")[-1]


def test_a_layer_that_moves_within_backward_is_clipped_as_all_are_at_the_end(place):
    optimizer = {"kind": "galore", "lr": 1e-2, "rank": 4, "clip": SMALL}
    place.write(optimizer=optimizer, batch={"size": 8, "micro": 8}, lanes=1)
    assert place.train("end") == Exit.DONE, place.err
    assert place.train("within", "optimizer.layerwise=true") == Exit.DONE, place.err
    assert place.train("unclipped", "optimizer.clip=null") == Exit.DONE, place.err
    within, end, unclipped = (losses(place, run) for run in ("within", "end", "unclipped"))
    assert within == end
    assert unclipped != end


def test_elements_are_clipped_as_torch_clips_them():
    network = nn.Linear(3, 2)
    horizon = Horizon(8, Scale(Batches(8)))
    built = build_network_optimizers(
        {"model": network}, AdamW(lr=0.1, clip=ClipByValue(value=0.5)), Constant(), horizon
    )
    drawn = [torch.randn(p.shape) for p in network.parameters()]
    for parameter, gradient in zip(network.parameters(), drawn, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_value_(network.parameters(), 0.5)
    given = [gradient.clone() for gradient in drawn]
    built["model"].clip_values(given)
    for parameter, gradient in zip(network.parameters(), given, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert built["model"].largest_norm is None


def test_the_recipe_says_it_and_a_running_one_may_be_told(place):
    place.write(optimizer={"kind": "adamw", "lr": 1e-2, "clip": 1.0})
    assert place("recipe", "check", "own.json", "--json") == 0
    digest = json.loads(place.out)["digest"]
    assert place("recipe", "check", "own.json", "optimizer.clip={value: 0.5}", "--json") == 0, place.err
    assert json.loads(place.out)["digest"] != digest
    for clip in ("{value: -1}", "{valeu: 1}", "{}", "x"):
        assert place("recipe", "check", "own.json", f"optimizer.clip={clip}") == Exit.BAD_RECIPE
        assert "optimizer.clip" in place.err
    projected = ("optimizer.kind=galore", "optimizer.lr=0.01", "optimizer.rank=4", "optimizer.reduce=projected")
    assert place("recipe", "check", "own.json", *projected, "optimizer.clip={value: 0.5}") == Exit.BAD_RECIPE
    assert "optimizer.reduce: projected leaves nobody the sum of whole gradients" in place.err
