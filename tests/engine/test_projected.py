"""Gradients that are summed over processes as GaLore's projections."""

import math

import pytest
import torch

from conftest import run_under_supervisor, tensors, trace
from drivetrain.engine.projected import ProjectedReducer
from drivetrain.optim.recipe import GaLore, ProjectedAdafactor, ProjectedAdamW8bit, ProjectedSGD
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from engines import build, mean_loss, micros, minimize, weights

KINDS = {
    "std": {},
    "full": {"projection": "full"},
    "random": {"refresh": "random"},
    "adafactor": {"base": ProjectedAdafactor()},
    "8 bits": {"base": ProjectedAdamW8bit()},
    "sgd, at once": {"base": ProjectedSGD(momentum=0.9), "stagger": False},
}


def galore(reduce, clip=None, **settings):
    return build(GaLore(lr=0.1, rank=2, gap=3, match=r".", clip=clip, reduce=reduce, **settings))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_whole_gradients(kind):
    one, other = (galore(reduce, **KINDS[kind]) for reduce in ("projected", "whole"))
    for step in range(1, 9):
        for engine in (one, other):
            minimize(engine, mean_loss, micros(4, 3, 1), step=step)
        torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=1e-6)


def test_clipping_goes_by_the_projections():
    clip = 1e-3
    engine = galore("projected", clip, base=ProjectedSGD(), scale=1.0)
    minimize(engine, mean_loss, micros(4), step=1)
    before = weights(engine)
    norm = minimize(engine, mean_loss, micros(4), step=2).read().norms["model"]
    assert norm > clip
    moved = float(torch.linalg.vector_norm(weights(engine) - before))
    assert moved == pytest.approx(0.1 * clip, rel=1e-2)  # bases are orthonormal


def test_a_step_that_is_not_made_leaves_nothing_behind():
    engine, plain = galore("projected"), galore("projected")
    for step in (1, 2, 3):
        if step == 2:
            bad = minimize(engine, lambda nets, batch: mean_loss(nets, batch) * math.nan, micros(4), step=step)
            assert bad.read().why == "not finite"
        for each in (engine, plain):
            minimize(each, mean_loss, micros(4), step=step)
    assert torch.equal(weights(engine), weights(plain))
    assert not engine.optimizers["model"].given


def test_between_its_bases_a_matrix_sends_its_projection_only(monkeypatch):
    """Layers 3 -> 4 -> 1: matrices (4, 3) and (1, 4) of rank 2 and 1, projected to 4 x 2 and 1 x 4 numbers."""
    sent = []
    monkeypatch.setattr(ProjectedReducer, "_send", lambda self, tensor: sent.append(tensor.numel()))
    engine = galore("projected", stagger=False)
    numbers = []
    for step in range(1, 6):
        minimize(engine, mean_loss, micros(4), step=step)
        numbers.append(sent[-1])
        sent.clear()
    assert numbers == [4 * 3 + 4, 2 * 4 + 4, 2 * 4 + 4, 4 * 3 + 4, 2 * 4 + 4]


@pytest.fixture
def recipe(tiny):
    """Twenty steps with clipping that bites and a ragged end."""
    optimizer = {"kind": "galore", "lr": 1e-2, "rank": 4, "gap": 7, "clip": 0.3, "reduce": "projected"}
    return tiny | {"optimizer": optimizer, "budget": {"samples": 19 * 8 + 1}, "evaluate": {}}


def test_two_processes_come_to_the_weights_of_one_and_a_resumed_run_to_the_same_bits(recipe, tmp_path):
    for name, *overrides in (("one",), ("two", "launch.processes=2")):
        assert run_under_supervisor(recipe, tmp_path / name, *overrides).code == Exit.DONE
    one, two = (tensors(tmp_path / name) for name in ("one", "two"))
    found = [key for key in one if key.startswith("networks/")]
    assert found
    assert max(float((one[key] - two[key]).abs().max()) for key in found) < 1e-5
    for until in (["stop.at=[5]"], ["stop.at=[9]"], []):
        outcome = run_under_supervisor(recipe, tmp_path / "cut", "launch.processes=2", *until, override=("stop",))
    assert outcome.code == Exit.DONE
    assert trace(tmp_path / "cut") == trace(tmp_path / "two")


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": {"kind": "galore", "reduce": "projected", "refresh": "random", "update": "scaled"}},
        {"optimizer": {"kind": "galore", "reduce": "projected", "layerwise": True}},
        {"exact": True},
        {"statistics": {"every": {"steps": 2}}},
    ],
    ids=str,
)
def test_what_needs_the_sum_of_whole_gradients_is_78_beside_it(recipe, given):
    with pytest.raises(RecipeMistakes, match="projected"):
        load(recipe | given)
