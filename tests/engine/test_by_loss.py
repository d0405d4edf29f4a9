"""Losses that a rule weighs by their gradients, on one process beside torch's autograd."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.losses import Losses
from drivetrain.engine.recompute import Recompute
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import SGD, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from engines import alone, micros, scaled_engine

SEEN = []


@dataclass(frozen=True)
class Told:
    """Fixed weights; it remembers the products that it was told."""

    losses: tuple[str, ...] = ("low", "steep")
    weights: tuple[float, ...] = (0.25, 0.75)

    def of(self, gram):
        SEEN.append(gram.copy())
        return self.weights


def engine_of(network, lr=0.1, **settings):
    built = build_network_optimizers({"model": network}, SGD(lr=lr), Constant(), Horizon(100, Scale(Batches(8))))
    built["model"].advance(8)
    return Engine({"model": network}, built, alone(**settings))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def two(nets, batch):
    said = nets["model"](batch)
    return Losses(low=(said[:, 0].sum(), "samples"), steep=(said[:, 1].square().sum(), "samples", 3.0))


def minimize(engine, loss, batches, rule, **inputs):
    counts = {"samples": sum(micro.size for micro in batches)}
    return engine.minimize(("model",), loss, MinimizeInputs(1, 0, batches, counts, rule=rule, **inputs)).read()


@pytest.mark.parametrize("exact", [None, 2])
def test_a_step_is_that_of_the_weighted_sum_and_the_products_are_those_of_whole_gradients(exact):
    SEEN.clear()
    of_rule, plain = engine_of(network(), exact=exact), network()
    told = minimize(of_rule, two, micros(2, 3), Told())
    batch = torch.cat([micro.batch for micro in micros(2, 3)])
    losses = {name: term.value * term.weight / 5 for name, term in two({"model": plain}, batch).items()}
    each = []
    for loss in losses.values():
        found = torch.autograd.grad(loss, list(plain.parameters()), retain_graph=True, allow_unused=True)
        each.append(torch.cat([g.flatten() if g is not None else torch.zeros(0) for g in found]))
    apart = torch.stack(each)
    assert np.allclose(SEEN[0], (apart @ apart.T).numpy(), rtol=1e-5)

    def added(nets, batch):
        low, steep = two(nets, batch).values()
        return Losses(low=(low.value, "samples", 0.25), steep=(steep.value, "samples", 0.75 * steep.weight))

    wanted = minimize(engine_of(plain), added, micros(2, 3), None)
    for found, expected in zip(of_rule.networks["model"].parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)
    assert told.norms["model"] == pytest.approx(wanted.norms["model"], rel=1e-5)
    assert told.weights == {"low": 0.25, "steep": 0.75}
    assert told.losses["low"] == pytest.approx(float(losses["low"].detach()), rel=1e-5)


def test_the_loss_scale_is_gone_from_the_step_and_clipping_is_of_the_weighted_gradient():
    def loss(nets, batch):
        with torch.autocast("cpu", enabled=False):
            said = nets["model"](batch)
        return Losses(low=(said.sum() * 9,), steep=(said.square().sum(),))

    found = []
    for start in (None, 2.0**10):
        engine = scaled_engine(start=start, precision="fp16")
        told = minimize(engine, loss, micros(3, 2), Told())
        found.append((told.norms, [parameter.detach() for parameter in engine.networks["model"].parameters()]))
    assert found[0][0] == found[1][0]
    assert found[0][0]["model"] > 0.5  # it was clipped
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_other_names_of_losses_are_told_with_those_that_are_weighed():
    with pytest.raises(Failure, match="the task's losses are low, steep, and those that are weighed low, high"):
        minimize(engine_of(network()), two, micros(2), Told(("low", "high")))


def test_what_looks_at_gradients_of_micro_batches_is_refused():
    given = micros(2)
    with pytest.raises(Failure, match=r"guard\.recompute does not go with losses that are weighed") as caught:
        minimize(engine_of(network()), two, given, Told(), recompute=Recompute(before=given, own=given))
    assert caught.value.outcome.code is Exit.BAD_RECIPE


def test_a_step_that_is_not_finite_moves_nothing_and_its_micro_batch_is_found():
    engine = engine_of(network())
    before = [parameter.detach().clone() for parameter in engine.networks["model"].parameters()]
    given = micros(2, 2)
    given[1].batch[0, 0] = float("nan")
    told = minimize(engine, two, given, Told())
    assert told.why == "not finite"
    assert all(map(torch.equal, before, engine.networks["model"].parameters()))
    work = MinimizeInputs(1, 0, given, {"samples": 4}, rule=Told())
    assert engine.nonfinite_micro_batches(("model",), two, work) == given[1:]
