import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.losses import Losses, as_losses, objective
from drivetrain.engine.step_result import Sums
from drivetrain.engine.vote import StepInputs, vote_on_device
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import SGD, AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from engines import CPU, alone, build, mean_loss, micros, minimize, weights


def test_a_scalar_is_the_mean_over_samples_whatever_the_micro_batches():
    nets = {"model": nn.Linear(3, 1)}
    batches = micros(5, 2, 1)
    counts = {"samples": 8}
    total = sum(objective(as_losses(mean_loss(nets, m.batch), m.size, counts, mean_loss), counts) for m in batches)
    whole = mean_loss(nets, torch.cat([m.batch for m in batches]))
    assert total.item() == pytest.approx(whole.item(), rel=1e-6)


def test_named_sums_are_weighted_means_over_their_units():
    losses = Losses(a=(torch.tensor(6.0), "tokens"), b=(torch.tensor(8.0), "samples", 0.5))
    assert float(objective(losses, {"tokens": 3, "samples": 4})) == 2.0 + 0.5 * 2.0


def test_a_loss_over_a_unit_that_is_not_counted_says_which_there_are():
    with pytest.raises(Failure, match=r"'pixels'.*samples"):
        as_losses(Losses(a=(torch.tensor(1.0), "pixels")), 1, {"samples": 1}, mean_loss)


def test_the_recorded_loss_is_the_global_mean():
    engine = build(SGD(lr=0.0))
    engine.networks["model"].eval()
    batches = micros(5, 3)
    losses = minimize(engine, mean_loss, batches).read().losses
    whole = mean_loss(engine.networks, torch.cat([m.batch for m in batches]))
    assert losses["loss"] == pytest.approx(whole.item(), rel=1e-6)


def test_what_is_drawn_in_a_step_follows_from_its_place_only():
    one, other = build(), build()
    torch.rand(7)  # the generators stand elsewhere
    minimize(one, mean_loss, micros(4, 4))
    torch.rand(3)
    minimize(other, mean_loss, micros(4, 4))
    assert torch.equal(weights(one), weights(other))
    third = build()
    minimize(third, mean_loss, micros(4, 4), step=2)
    assert not torch.equal(weights(one), weights(third))


@pytest.mark.parametrize("clip", [None, 0.01, 1e6])
def test_clipping_is_torchs(clip):
    engine, plain = build(SGD(lr=1.0, clip=clip)), build(SGD(lr=1.0))
    for e in (engine, plain):
        e.networks["model"].eval()
    (micro,) = micros(4)
    norm = minimize(engine, mean_loss, [micro]).read().norms["model"]
    model = plain.networks["model"]
    mean_loss(plain.networks, micro.batch).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert norm == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(weights(engine), weights(plain), atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_n01_n02_nobody_moves_where_a_loss_or_gradient_is_not_finite(bad):
    engine = build()
    before = weights(engine)

    def loss(nets, batch):
        return mean_loss(nets, batch) * (bad if float(batch[0, 0]) > 1 else 1.0)

    batches = micros(4, 4, start=0)
    batches[1] = batches[1]._replace(batch=batches[1].batch + 5)
    move = minimize(engine, loss, batches)
    assert move.read().why == "not finite"
    assert torch.equal(weights(engine), before)
    guilty = engine.nonfinite_micro_batches(("model",), loss, MinimizeInputs(1, 0, batches, {"samples": 8}))
    assert [micro.start for micro in guilty] == [4]


def test_n02_an_infinite_gradient_behind_a_finite_loss_stops_too():
    engine = build()
    before = weights(engine)
    parameter = next(engine.networks["model"].parameters())
    handle = parameter.register_hook(lambda grad: grad * math.inf)
    assert minimize(engine, mean_loss, micros(4)).read().why == "not finite"
    handle.remove()
    assert torch.equal(weights(engine), before)


class HostEvent:
    """The CPU has no events: what was asked for is there."""

    def __init__(self, device):
        pass

    def record(self):
        pass

    def synchronize(self):
        pass


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.1), SGD(lr=0.1, momentum=0.9)])
@pytest.mark.parametrize("bad", [False, True])
def test_the_vote_of_an_accelerator_skips_and_moves_like_the_cpus(optimizer, bad, monkeypatch):
    """The path that never waits, on tensors of the CPU: fused optimizers skip by `found_inf`."""
    host, device = build(optimizer), build(optimizer)
    (micro,) = micros(4)
    before = weights(device)
    for engine in (host, device):
        engine.networks["model"].eval()
    minimize(host, mean_loss, [micro])
    mean_loss(device.networks, micro.batch).backward()
    network_optimizer = device.network_optimizers["model"]
    gradients = [[p.grad for p in network_optimizer.parameters]]
    if bad:
        gradients[0][0].fill_(math.inf)
    norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients[0]]))
    sums = Sums(CPU)
    sums.labels, sums.values = [("loss", "samples")], [torch.tensor(4.0)]
    monkeypatch.setattr(torch, "Event", HostEvent)  # not before torch's compiler is imported, which derives from it
    move = vote_on_device(StepInputs([network_optimizer], gradients, [norm], sums, {"samples": 4}))
    assert bool(move.read().why) is bad
    assert move.read().losses == {"loss": 1.0}
    if bad:
        assert torch.equal(weights(device), before)
    else:
        assert torch.allclose(weights(device), weights(host), atol=1e-6)


def test_networks_that_do_not_move_stand_still_and_get_no_gradient():
    engine = build(names=("g", "d"))
    d = weights(engine, "d")
    move = minimize(
        engine, lambda nets, batch: (nets["d"](torch.sigmoid(nets["g"](batch)).expand(-1, 3))).mean(), micros(4), ("g",)
    )
    assert move.networks == ("g",)
    assert torch.equal(weights(engine, "d"), d)
    assert all(p.grad is None for p in engine.networks["d"].parameters())


@pytest.mark.parametrize(
    ("result", "words"),
    [(torch.zeros(64), "no 0-d tensor, but [64]"), (0.5, "float"), (Losses(a=(torch.ones(2),)), "'a'")],
)
def test_a_loss_that_is_no_scalar_is_told_with_its_shape(result, words):
    with pytest.raises(Failure) as caught:
        as_losses(result, 64, {"samples": 64}, mean_loss)
    assert caught.value.outcome.code == Exit.INTERNAL
    assert words in caught.value.outcome.cause


def test_losses_that_differ_between_micro_batches_are_refused():
    names = iter(["a", "b"])
    with pytest.raises(ValueError, match="differ between micro-batches"):
        minimize(build(), lambda nets, batch: Losses(**{next(names): (nets["model"](batch).sum(),)}), micros(2, 2))


def test_evaluation_mode_ends_with_the_modes_as_they_were():
    engine = build(names=("g", "d"))
    engine.networks["d"].eval()
    with engine.evaluating() as networks:
        assert not networks["g"].training
        assert not networks["g"](torch.ones(1, 3)).requires_grad
    assert engine.networks["g"].training
    assert not engine.networks["d"].training


def test_optimizers_by_network_must_name_the_networks_that_train():
    networks = {"g": nn.Linear(1, 1), "d": nn.Linear(1, 1)}
    with pytest.raises(Failure) as caught:
        build_network_optimizers(networks, {"g": AdamW(), "x": SGD()}, Constant(), Horizon(10, Scale(Batches(1))))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    network_optimizers = build_network_optimizers(
        networks, {"g": AdamW(), "d": SGD()}, Constant(), Horizon(10, Scale(Batches(1)))
    )
    assert type(network_optimizers["d"].optimizer).__name__ == "SGD"


def test_a_network_without_trainable_parameters_has_no_updater():
    frozen = nn.Linear(1, 1).requires_grad_(False)
    assert list(
        build_network_optimizers(
            {"a": nn.Linear(1, 1), "b": frozen}, AdamW(), Constant(), Horizon(10, Scale(Batches(1)))
        )
    ) == ["a"]


def test_after_an_evaluation_random_numbers_buffers_and_each_modules_mode_are_as_before():
    engine = build()
    network = engine.networks["model"]
    network[2].register_buffer("seen", torch.zeros(2))
    network[2].register_buffer("late", None)
    engine = Engine(engine.networks, engine.network_optimizers, alone())
    network[1].eval()
    drawn = []
    for evaluated in (False, True):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        if evaluated:
            with engine.evaluating() as networks:
                engine.seed(1, 2)
                networks["model"].train()
                network[2].seen += random.random() + np.random.rand() + float(torch.rand(()))
                network[2].late = network[2].seen * 2
        drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))
    assert drawn[0] == drawn[1]
    assert [module.training for module in network.modules()] == [True, True, False, True]
    assert network[2].seen.tolist() == [0.0, 0.0]
    assert network[2].late is None
