"""Optimizers of other libraries: their steps are these libraries', state is plain tensors, a resume has the same bits.

torchao and bitsandbytes are extras: what is not installed is not tried.
"""

import math
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from drivetrain.checkpoint.state import capture, restore
from drivetrain.optim import lowbit
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import (
    BitsandbytesAdamW8bit,
    Constant,
    TorchaoAdamW4bit,
    TorchaoAdamW8bit,
    WeightDecaySchedule,
)
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from engines import build as build_engine
from engines import mean_loss, micros, minimize, weights

DECAY = WeightDecaySchedule(kind="linear", start=1.0, end=0.0)
SETTINGS = {
    "torchao 8 bits": TorchaoAdamW8bit(compiled=False, weight_decay=0.1, weight_decay_schedule=DECAY),
    "torchao 4 bits": TorchaoAdamW4bit(compiled=False, weight_decay=0.1, weight_decay_schedule=DECAY),
    "bitsandbytes": BitsandbytesAdamW8bit(weight_decay=0.1, weight_decay_schedule=DECAY),
}
STEPS = 10


@pytest.fixture(params=SETTINGS)
def settings(request):
    package = request.param.split()[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return SETTINGS[request.param]


def network(dtype=torch.float32, seed=0):
    """Two weights whose moments are quantized, where a shorter last block is (5200 = 20 * 256 + 80), and two biases."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 80), nn.Tanh(), nn.Linear(80, 65)).to(dtype)


def updater_of(model, settings):
    return build_network_optimizers(
        {"m": model}, settings, Constant(warmup=Amount(steps=4)), Horizon(STEPS, Scale(Batches(1)))
    )["m"]


def move(model, network_optimizer, first=0, last=STEPS):
    for step in range(first, last):
        network_optimizer.advance(step + 1)
        backward(model, step)
        network_optimizer.optimizer.step()


def backward(model, step):
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(step)).to(dtype)
    model.zero_grad()
    (model(inputs) - inputs[:, :1]).float().square().mean().backward()


def state(model, network_optimizer):
    return {name: tensor.clone() for name, tensor in capture({"m": model}, {"m": network_optimizer.optimizer}).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_those_of_the_library(settings, dtype):
    ours, theirs = network(dtype), network(dtype)
    network_optimizer = updater_of(ours, settings)
    groups = updater_of(theirs, settings).optimizer.param_groups
    groups = [{"params": group["params"], "lr": torch.tensor(0.0), "weight_decay": 0.0} for group in groups]
    package = "bitsandbytes" if isinstance(settings, BitsandbytesAdamW8bit) else "torchao"
    library = getattr(pytest.importorskip(f"{package}.optim"), settings.name)(groups, betas=settings.betas)
    for step in range(STEPS):
        move(ours, network_optimizer, step, step + 1)
        for group, own in zip(library.param_groups, network_optimizer.optimizer.param_groups, strict=True):
            group.update(lr=own["lr"] if package == "bitsandbytes" else torch.tensor(own["lr"]))
            group["weight_decay"] = own["weight_decay"]
        backward(theirs, step)
        with torch.compiler.set_stance("force_eager"):
            library.step()
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ten_steps_are_five_then_a_resume_then_five(settings, dtype):
    models = [network(dtype), network(dtype), network(dtype, seed=9)]
    whole, first, second = (updater_of(model, settings) for model in models)
    move(models[0], whole)
    move(models[1], first, last=5)
    restore(state(models[1], first), {"m": models[2]}, {"m": second.optimizer})
    given, taken = state(models[1], first), state(models[2], second)
    assert {name: tensor.dtype for name, tensor in given.items()} == {name: t.dtype for name, t in taken.items()}
    move(models[2], second, first=5)
    expected, found = state(models[0], whole), state(models[2], second)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_torchs_strict_loader_takes_the_state_and_types_stay(settings, tmp_path):
    models = [network(torch.bfloat16), network(torch.bfloat16)]
    first, second = (updater_of(model, settings) for model in models)
    move(models[0], first, last=5)
    torch.save(first.optimizer.state_dict(), tmp_path / "optimizer.pt")
    models[1].load_state_dict(models[0].state_dict())
    second.optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for model, network_optimizer in zip(models, (first, second), strict=True):
        move(model, network_optimizer, first=5)
    expected, found = state(models[0], first), state(models[1], second)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_state_is_plain_tensors_and_all_its_bytes_are_told(settings):
    model = network()
    network_optimizer = updater_of(model, settings)
    move(model, network_optimizer, last=1)
    kept = {name: tensor for name, tensor in state(model, network_optimizer).items() if name.startswith("optimizers")}
    assert {type(tensor) for tensor in kept.values()} == {torch.Tensor}
    width, block = (0.5, 128) if isinstance(settings, TorchaoAdamW4bit) else (1, 256)
    parts = isinstance(settings, BitsandbytesAdamW8bit)  # whether a last block may be shorter; torchao codes no such
    coded = [numbers for numbers in (64 * 80, 80 * 65) if parts or numbers % block == 0]
    whole = 64 * 80 + 80 * 65 + 80 + 65 - sum(coded)
    moment = sum(int(numbers * width) + 4 * math.ceil(numbers / block) for numbers in coded) + 4 * whole
    assert sum(tensor.nbytes for tensor in kept.values()) == 2 * moment + 4 * 4  # and a count of steps for each


def test_state_of_another_shape_is_76(settings):
    models = [network(), network()]
    first, second = (updater_of(model, settings) for model in models)
    move(models[0], first, last=1)
    kept = state(models[0], first)
    name = next(name for name, tensor in kept.items() if tensor.dtype is torch.uint8)
    kept[name] = kept[name][:-1].clone()
    with pytest.raises(Failure, match="fits no parameter") as refused:
        restore(kept, {"m": models[1]}, {"m": second.optimizer})
    assert refused.value.outcome.code is Exit.INCOMPATIBLE


def test_layer_by_layer_is_the_same_without_clipping(settings):
    settings = replace(settings, clip=None, lr=0.1)
    engines = [build_engine(settings), build_engine(replace(settings, layerwise=True))]
    for engine in engines:
        for step in range(3):
            minimize(engine, mean_loss, micros(2, 2), step=step)
    assert torch.equal(*map(weights, engines))


def test_a_library_that_is_not_there_is_66_with_what_to_install(monkeypatch):
    monkeypatch.setattr(lowbit, "find_spec", lambda package: None)
    for settings, package in ((TorchaoAdamW8bit(), "torchao"), (BitsandbytesAdamW8bit(), "bitsandbytes")):
        with pytest.raises(Failure, match=f"needs {package}") as refused:
            updater_of(network(), settings)
        assert refused.value.outcome.code is Exit.INPUT_MISSING
        assert f"drivetrain[{package}]" in refused.value.outcome.hint


class Elsewhere(torch.optim.AdamW):
    """A library on a device for which it has no kernels; there is none here."""

    def step(self, closure=None):
        raise NotImplementedError("Could not run 'bitsandbytes::optimizer_update_8bit_blockwise'\nwith arguments")


def test_a_device_that_bitsandbytes_has_no_kernels_for_is_78_before_the_first_step(monkeypatch):
    monkeypatch.setattr(lowbit, "_library", lambda package, module: SimpleNamespace(AdamW8bit=Elsewhere))
    with pytest.raises(Failure, match=r"does not move parameters on cpu: Could not run '.*blockwise'\. ") as refused:
        updater_of(network(), BitsandbytesAdamW8bit())
    assert refused.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.slow
def test_compiled_steps_come_near_and_resume_to_the_same_bits():
    pytest.importorskip("torchao")
    models = [network()[:1] for _ in range(3)]
    eager, whole, first = (
        updater_of(model, TorchaoAdamW8bit(compiled=compiled))
        for model, compiled in zip(models, (False, True, True), strict=True)
    )
    move(models[0], eager)
    move(models[1], whole)
    move(models[2], first, last=5)
    resumed = network(seed=9)[:1]
    second = updater_of(resumed, TorchaoAdamW8bit())
    restore(state(models[2], first), {"m": resumed}, {"m": second.optimizer})
    move(resumed, second, first=5)
    for mine, its, near in zip(*(m.parameters() for m in (resumed, models[1], models[0])), strict=True):
        assert torch.equal(mine, its)
        torch.testing.assert_close(mine, near, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_without_a_compiler_it_is_78(monkeypatch):
    pytest.importorskip("torchao")
    from torch._inductor import config

    torch._dynamo.reset()
    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    model = network()[:1]
    network_optimizer = updater_of(model, TorchaoAdamW8bit())
    with pytest.raises(Failure, match="cannot be compiled") as refused:
        move(model, network_optimizer, last=1)
    assert refused.value.outcome.code is Exit.BAD_RECIPE
