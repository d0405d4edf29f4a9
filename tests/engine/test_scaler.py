import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engine.engine import MinimizeInputs
from drivetrain.engine.recipe import Network, Scaling
from drivetrain.engine.scaler import Scaler
from engines import CPU, mean_loss, micros, scaled_engine, weights

YES, NO = torch.tensor(True), torch.tensor(False)


def expected(settings, overflows):
    """The schedule of the paper, in plain numbers."""
    scale, clean = settings.start, 0
    for overflow in overflows:
        if overflow:
            scale, clean = max(scale / 2, settings.least), 0
        elif clean + 1 >= settings.window:
            scale, clean = min(scale * 2, settings.most), 0
        else:
            clean += 1
    return scale, clean


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(0, 12))
def test_it_is_halved_at_an_overflow_and_doubled_after_a_window_without(overflows, window, start):
    settings = Scaling(start=2.0**start, window=window, least=1.0, most=2.0**12)
    scaler = Scaler(settings, CPU)
    for overflow in overflows:
        scaler.update(torch.tensor(overflow), YES)
    assert (float(scaler.scale), int(scaler.clean)) == expected(settings, overflows)


def test_a_loss_that_is_not_finite_tells_nothing_about_it():
    scaler = Scaler(Scaling(start=8.0), CPU)
    scaler.update(YES, NO)
    assert float(scaler.scale) == 8.0


def test_scaling_changes_no_bit_where_nothing_overflows():
    """It is a power of two: losses, norms, clipping and weights are those without it."""

    def loss(nets, batch):
        with torch.autocast("cpu", enabled=False):  # in fp16 small numbers would vanish without it
            return mean_loss(nets, batch)

    plain, scaled = scaled_engine(start=None, precision="fp16"), scaled_engine(precision="fp16")
    for engine in (plain, scaled):
        for step in range(1, 4):
            work = MinimizeInputs(step, 0, micros(3, 2), {"samples": 5})
            engine.told = engine.minimize(("model",), loss, work).read()
    assert torch.equal(weights(plain), weights(scaled))
    assert plain.told.losses == scaled.told.losses
    assert plain.told.norms == scaled.told.norms
    assert scaled.told.scale == 1024.0


def test_an_overflow_moves_nothing_and_halves_the_scale():
    engine = scaled_engine(start=2.0**24, precision="fp16")
    before = weights(engine)
    seen = []
    for step in range(1, 30):
        told = engine.minimize(
            ("model",), lambda n, b: mean_loss(n, b) * 10, MinimizeInputs(step, 0, micros(4), {"samples": 4})
        )
        scalars = told.read()
        seen.append(scalars.why)
        assert math.isfinite(scalars.losses["loss"])
        if not scalars.why:
            break
        assert torch.equal(weights(engine), before)
    assert seen[0] == "overflow"
    assert seen[-1] == ""
    assert float(engine.scaler.scale) == 2.0**24 / 2 ** (len(seen) - 1)
    assert not torch.equal(weights(engine), before)


def test_it_is_for_half_precision_only_and_excuses_no_other_gradient_that_is_not_finite():
    """A run in fp32 has a scale where one of its networks is in fp16; the others know nothing of it."""
    engine = scaled_engine(precision="fp32")

    def loss(nets, batch):
        return (nets["model"](batch) * 0.0).sqrt().sum()  # 0, with a gradient of inf * 0

    told = engine.minimize(("model",), loss, MinimizeInputs(1, 0, micros(4), {"samples": 4})).read()
    assert math.isfinite(told.losses["loss"])
    assert (told.why, told.scale, float(engine.scaler.scale)) == ("not finite", None, 1024.0)
    engine = scaled_engine(precision="fp32", network_settings={"model": Network(precision="fp16")})
    halves = engine.minimize(("model",), loss, MinimizeInputs(2, 0, micros(4), {"samples": 4})).read()
    assert (halves.why, float(engine.scaler.scale)) == ("overflow", 512.0)


def test_half_precision_keeps_gradients_that_would_vanish():
    sizes = {}
    for start in (1.0, 2.0**8):
        engine = scaled_engine(start=start, precision="fp16")
        told = engine.minimize(
            ("model",), lambda n, b: mean_loss(n, b) * 1e-7, MinimizeInputs(1, 0, micros(4), {"samples": 4})
        ).read()
        assert told.why == ""
        sizes[start] = told.norms["model"]
    assert sizes[1.0] == 0.0
    assert sizes[2.0**8] > 0.0
