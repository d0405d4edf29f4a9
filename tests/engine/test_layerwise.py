"""Parameters that move within the backward pass, and free their gradients."""

import math

import pytest
import torch

from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.optim.network_optimizer import retuned
from drivetrain.optim.recipe import SGD, AdamW, GaLore, Muon, ProjectedAdamW8bit
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from engines import build, mean_loss, micros, minimize, weights

KINDS = {
    "adamw": AdamW(lr=0.1, clip=None, layerwise=True),
    "sgd": SGD(lr=0.1, momentum=0.9, layerwise=True),
    "muon": Muon(lr=0.1, clip=None, layerwise=True),
    "galore": GaLore(lr=0.1, rank=2, gap=2, clip=None, layerwise=True),
    "galore in 8 bits": GaLore(lr=0.1, rank=2, gap=2, clip=None, base=ProjectedAdamW8bit(), layerwise=True),
}


def at_once(settings):
    return type(settings)(**{**vars(settings), "layerwise": False})


@pytest.mark.parametrize("kind", KINDS)
def test_without_clipping_it_is_the_same_to_the_last_bit(kind):
    """Under accumulation too: an optimizer moves once a step, by the whole gradient."""
    one, other = build(KINDS[kind]), build(at_once(KINDS[kind]))
    for step in range(1, 6):
        found = minimize(one, mean_loss, micros(4, 3, 1), step=step).read()
        expected = minimize(other, mean_loss, micros(4, 3, 1), step=step).read()
        assert torch.equal(weights(one), weights(other))
        assert found.losses == expected.losses
        assert found.norms["model"] == pytest.approx(expected.norms["model"], rel=1e-6)


def test_an_optimizer_sees_one_gradient_at_a_time_and_none_is_left():
    engine = build(AdamW(lr=0.1, layerwise=True))
    parameters, seen = list(engine.networks["model"].parameters()), []
    step = engine.optimizers["model"].step

    def counted():
        seen.append([place for place, parameter in enumerate(parameters) if parameter.grad is not None])
        step()

    engine.optimizers["model"].step = counted
    minimize(engine, mean_loss, micros(4, 4))
    assert sorted(seen) == [[0], [1], [2], [3]]
    assert all(parameter.grad is None for parameter in parameters)


def test_clipping_goes_by_the_norm_of_the_step_before():
    clip, lr = 0.05, 0.1
    engine, plain = build(SGD(lr=lr, clip=clip, layerwise=True)), build(SGD(lr=lr))
    last = 0.0
    for step in range(1, 5):
        before = weights(plain)
        torch.nn.utils.vector_to_parameters(weights(engine), plain.networks["model"].parameters())
        start = weights(engine)
        norm = minimize(plain, mean_loss, micros(4, 4), step=step).read().norms["model"]
        gradient = (start - weights(plain)) / lr
        found = minimize(engine, mean_loss, micros(4, 4), step=step).read().norms["model"]
        expected = start - lr * gradient * min(1.0, clip / (last + 1e-6))
        torch.testing.assert_close(weights(engine), expected, rtol=1e-5, atol=1e-6)
        assert found == pytest.approx(norm, rel=1e-5)
        assert not torch.equal(before, weights(plain))
        last = norm
    assert last > clip


def test_clipping_that_is_set_while_a_run_trains_holds_from_the_next_step_on():
    first, later = SGD(lr=0.1, clip=1e9, layerwise=True), SGD(lr=0.1, clip=1e-9, layerwise=True)
    engine = build(first)
    minimize(engine, mean_loss, micros(4, 4), step=1)
    engine.network_optimizers.update(retuned(engine.network_optimizers, build(later).network_optimizers))
    before = weights(engine)
    norm = minimize(engine, mean_loss, micros(4, 4), step=2).read().norms["model"]
    assert norm > 1e-3
    torch.testing.assert_close(weights(engine), before, rtol=0, atol=1e-6)


def test_a_basis_that_is_due_at_a_gradient_that_is_not_finite_leaves_it_to_the_guard():
    """Which may want to go back: the optimizer, which looks first here, does not end the run."""
    engine = build(KINDS["galore"])
    told = minimize(engine, lambda nets, batch: mean_loss(nets, batch) * math.nan, micros(4))
    assert told.read().why == "not finite"


@pytest.fixture
def layerwise(tiny):
    """GaLore with clipping that bites, accumulation and dropout."""
    optimizer = {"kind": "galore", "lr": 1e-2, "rank": 4, "gap": 3, "clip": 0.3, "layerwise": True}
    return tiny | {"optimizer": optimizer}


def test_stopped_and_resumed_it_is_the_same_run_to_the_last_bit(layerwise, tmp_path):
    assert run_under_supervisor(layerwise, tmp_path / "whole").code == Exit.DONE
    assert run_under_supervisor(layerwise, tmp_path / "cut", "stop.at=[7]").code == Exit.STOPPED
    assert run_under_supervisor(layerwise, tmp_path / "cut", override=("stop",)).code == Exit.DONE
    assert trace(tmp_path / "cut") == trace(tmp_path / "whole")


def test_two_processes_come_to_what_one_does(layerwise, tmp_path):
    """Also in a last step in which one of them has no sample."""
    layerwise |= {"budget": {"samples": 12 * 8 + 1}}
    assert run_under_supervisor(layerwise, tmp_path / "one").code == Exit.DONE
    assert run_under_supervisor(layerwise, tmp_path / "two", "launch.processes=2").code == Exit.DONE
    one, two = trace(tmp_path / "one"), trace(tmp_path / "two")
    assert one.samples == two.samples
    for (_, mine, *_), (_, theirs, *_) in zip(one.losses, two.losses, strict=True):
        assert mine[1] == pytest.approx(theirs[1], rel=1e-4)


def test_weights_that_have_become_nan_end_the_run_and_are_not_committed(layerwise, tmp_path):
    outcome = run_under_supervisor(layerwise, tmp_path / "run", "optimizer.lr=1e30", "checkpoint.every.steps=1")
    assert outcome.code == Exit.DIVERGED
    made = [record for record in read(tmp_path / "run" / "ledger.jsonl") if record["kind"] == "step"]
    bad = [record["step"] for record in made if not all(math.isfinite(float(norm)) for norm in record["norm"].values())]
    commits = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert not bad or int(commits[-1].removeprefix("step-")) < bad[0]


@pytest.mark.parametrize(
    "given",
    [
        {"guard": {"nonfinite": "skip"}},
        {"guard": {"spike": {"action": "skip"}}},
        {"guard": {"recompute": {"steps": 2}}},
        {"precision": "fp16"},
        {"exact": True},
        {"statistics": {"every": {"steps": 2}}},
    ],
    ids=str,
)
def test_what_looks_at_gradients_before_weights_move_is_78_beside_it(layerwise, given):
    with pytest.raises(RecipeMistakes, match="layerwise"):
        load(layerwise | given)
