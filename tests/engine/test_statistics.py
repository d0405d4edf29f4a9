import pytest
import torch

import drivetrain
from conftest import trace
from drivetrain.engine.engine import MinimizeInputs
from drivetrain.engine.recipe import Statistics
from drivetrain.engine.statistics import Probe, histogram, noise
from drivetrain.optim.recipe import SGD
from drivetrain.runtime.group import Group
from drivetrain.spec.amount import Amount
from engines import build, mean_loss, micros, weights
from records import of_kind

EVERY = Amount(steps=1)


def test_the_noise_scale_of_gradients_with_a_known_covariance_is_found():
    """One weight with the gradient 3 + noise of variance 4: signal 9, noise 4, so batches pay up to about 0.44."""
    each = 3 + 2 * torch.randn(20000, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small, whole = each[:, :4].mean(1).square().tolist(), each.mean(1).square().tolist()
    found = [noise([(part, 4)], total, 32) for part, total in zip(small, whole, strict=True)]
    assert sum(one["signal"] for one in found) / len(found) == pytest.approx(9, rel=0.02)
    assert sum(one["noise"] for one in found) / len(found) == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("parts", [[(1.0, 8)], [(1.0, 4), (1.0, 2)], []])
def test_batches_that_cannot_be_compared_tell_nothing(parts):
    assert noise(parts, 1.0, 8) == {}


def test_a_probe_sees_the_gradient_of_the_first_micro_batch_and_what_the_step_has_changed():
    engine = build(SGD(lr=0.5))
    engine.networks["model"].eval()
    batches, before = micros(2, 2, 2, 2), weights(engine)
    probe = Probe(Statistics(every=EVERY), engine.network_optimizers, engine.placement)
    told = engine.minimize(("model",), mean_loss, MinimizeInputs(1, 0, batches, {"samples": 8}, probe=probe)).read()
    (found,) = probe.result(told.norms, 8).values()
    assert found["weights"] == pytest.approx(float(before.norm()), rel=1e-5)
    assert found["change"] == pytest.approx(float((weights(engine) - before).norm()), rel=1e-4)
    alone = build(SGD(lr=0.0))
    alone.networks["model"].eval()
    small = (
        alone.minimize(("model",), mean_loss, MinimizeInputs(1, 0, micros(2), {"samples": 2})).read().norms["model"]
        ** 2
    )
    assert {"signal", "noise"} <= found.keys()
    assert found["noise"] == pytest.approx((small - told.norms["model"] ** 2) / (1 / 2 - 1 / 8), rel=1e-3)


def test_measuring_changes_no_bit():
    plain, probed = build(), build()
    for step in (1, 2, 3):
        plain.minimize(("model",), mean_loss, MinimizeInputs(step, 0, micros(3, 3), {"samples": 6}))
        probe = Probe(Statistics(every=EVERY), probed.network_optimizers, probed.placement)
        probed.minimize(("model",), mean_loss, MinimizeInputs(step, 0, micros(3, 3), {"samples": 6}, probe=probe))
    assert torch.equal(weights(plain), weights(probed))


def test_the_scale_of_the_loss_is_taken_out():
    from engines import scaled_engine as engine_of

    found = []
    for start in (None, 2.0**10):
        engine = engine_of(start=start)
        probe = Probe(Statistics(every=EVERY), engine.network_optimizers, engine.placement)
        told = engine.minimize(
            ("model",), mean_loss, MinimizeInputs(1, 0, micros(2, 2), {"samples": 4}, probe=probe)
        ).read()
        found.append(probe.result(told.norms, 4)["model"])
    assert found[0] == pytest.approx(found[1])


def test_a_histogram_counts_all_finite_numbers_of_all_tensors():
    found = histogram([torch.tensor([0.0, 1.0, float("nan")]), torch.tensor([[64.0], [float("inf")]])], Group())
    assert (found.low, found.high, sum(found.counts)) == (0.0, 64.0, 3)
    assert (found.counts[0], found.counts[1], found.counts[-1]) == (1, 1, 1)
    assert (found.edges[0], found.edges[1], found.edges[-1]) == (0.0, 1.0, 64.0)
    for same in ([], [torch.full((3,), 2.0)]):
        found = histogram(same, Group())
        assert found.high - found.low == 1.0
        assert sum(found.counts) == sum(tensor.numel() for tensor in same)


def test_histograms_by_choice_change_no_bit(tiny, tmp_path):
    runs = {}
    for asked in (False, True):
        given = ["statistics.every.steps=6", f"statistics.histograms={asked}".lower()]
        runs[asked] = drivetrain.train(tiny, given, run=tmp_path / str(asked), progress=False).run
    assert trace(runs[True]) == trace(runs[False])
    assert not any("histograms" in record for record in of_kind(runs[False], "statistics"))
    first, _ = of_kind(runs[True], "statistics")
    size = of_kind(runs[True], "attempt")[0]["parameters"]["model"]
    for name in ("weights", "change"):
        assert sum(first["histograms"]["model"][name]["counts"]) == size
