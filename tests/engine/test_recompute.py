"""What is compared when a micro-batch is computed again, and what cannot be."""

import pytest
import torch
from torch import nn

from drivetrain.engine.buffers import Buffers
from drivetrain.engine.engine import MinimizeInputs
from drivetrain.engine.recompute import Recompute, require_alone
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure
from engines import build, mean_loss, micros, weights


def checked(engine, loss, batches, again=None):
    """One step, of which the first micro-batch (or another in its place) is computed again."""
    total = {"samples": sum(micro.size for micro in batches)}
    work = MinimizeInputs(1, 0, batches, total, recompute=Recompute([again or batches[0]], batches[:1]))
    return engine.minimize(("model",), loss, work)


def test_a_check_changes_neither_weights_nor_buffers():
    plain, twice = build(), build()
    for engine in (plain, twice):
        engine.networks["model"].register_buffer("calls", torch.zeros(()))
        engine.buffers = Buffers(engine.networks, Group())

    def counted(nets, batch):
        nets["model"].calls += 1
        return mean_loss(nets, batch)

    plain.minimize(("model",), counted, MinimizeInputs(1, 0, micros(2, 2), {"samples": 4}))
    checked(twice, counted, micros(2, 2))
    assert torch.equal(weights(plain), weights(twice))
    assert twice.networks["model"].calls == plain.networks["model"].calls == 2


def test_a_micro_batch_in_parts_is_compared_part_by_part():
    engine, parts, other = build(), micros(1, 1, 2), micros(1, 1, start=1)
    counts = {"samples": 4}
    engine.minimize(
        ("model",), mean_loss, MinimizeInputs(1, 0, parts, counts, recompute=Recompute(parts[:2], parts[:2]))
    )
    again = [parts[0], parts[1]._replace(batch=other[1].batch)]
    with pytest.raises(Failure, match="batch/0 of part 2"):
        engine.minimize(
            ("model",), mean_loss, MinimizeInputs(2, 0, parts, counts, recompute=Recompute(again, parts[:2]))
        )


def test_the_first_of_batch_losses_and_gradients_that_differs_is_named():
    engine, calls = build(), []

    def drifting(nets, batch):
        calls.append(batch)
        return mean_loss(nets, batch) * (1 + 2.0**-20 * len(calls))

    other = micros(2, 2)[0]._replace(batch=micros(2, start=1)[0].batch)
    for loss, again, tensor in ((drifting, None, "losses/loss"), (mean_loss, other, "batch/0")):
        before = weights(engine)
        with pytest.raises(Failure, match=tensor) as wrong:
            checked(engine, loss, micros(2, 2), again)
        assert wrong.value.outcome.code is Exit.CORRUPTION_SUSPECTED
        assert torch.equal(weights(engine), before)


def test_what_does_not_come_to_the_same_bits_twice_is_refused_in_words():
    def unordered(nets, batch):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
        return mean_loss(nets, batch)

    def moving(nets, batch):
        with torch.no_grad():
            nets["model"][0].bias += 1
        return mean_loss(nets, batch)

    for loss, words in ((unordered, "guard.recompute: put_"), (moving, "changes the parameter model.0.bias")):
        with pytest.raises(Failure, match=words) as refused:
            checked(build(), loss, micros(2, 2))
        assert refused.value.outcome.code is Exit.BAD_RECIPE
    with pytest.raises(Failure, match=r"model\.0 \(SyncBatchNorm\)"):
        require_alone({"model": nn.Sequential(nn.SyncBatchNorm(3))})
