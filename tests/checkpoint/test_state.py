import pytest
import torch
from torch import nn

from drivetrain.checkpoint.state import capture, restore
from drivetrain.spec.exits import Exit, Failure


def build(width=4, seed=0, fused=True):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    named = list(net.named_parameters())
    groups = [{"params": [p for _, p in named], "names": [n for n, _ in named]}]
    return {"model": net}, {"model": torch.optim.AdamW(groups, lr=0.1, fused=fused)}


def train(networks, optimizers, steps=3):
    for _ in range(steps):
        optimizers["model"].zero_grad()
        networks["model"](torch.arange(12.0).reshape(4, 3)).square().sum().backward()
        optimizers["model"].step()


@pytest.mark.parametrize("fused", [True, False])
def test_restored_state_goes_on_to_the_same_bits(fused):
    one = build(fused=fused)
    train(*one)
    kept = {name: tensor.clone() for name, tensor in capture(*one).items()}
    other = build(seed=9, fused=fused)
    restore(kept, *other)
    train(*one)
    train(*other)
    first, second = capture(*one), capture(*other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_buffers_are_state_and_tied_weights_are_kept_once():
    networks, optimizers = build()
    assert "networks/model/1.running_mean" in capture(networks, optimizers)
    networks["model"].tied = networks["model"][0]
    names = [name for name in capture(networks, optimizers) if name.endswith("weight")]
    assert len(names) == 3


@pytest.mark.parametrize("change", ["shape", "missing", "unexpected", "type"])
def test_c05_tensors_that_do_not_fit_are_76_by_name_and_nothing_is_changed(change):
    networks, optimizers = build()
    kept = {name: tensor.clone() for name, tensor in capture(networks, optimizers).items()}
    name = "networks/model/0.weight"
    if change == "shape":
        kept[name] = torch.zeros(9, 9)
    elif change == "type":
        kept[name] = kept[name].double()
    elif change == "missing":
        del kept[name]
    else:
        kept["networks/model/9.weight"] = torch.zeros(1)
        name = "networks/model/9.weight"
    other = build(seed=5)
    before = {n: t.clone() for n, t in capture(*other).items()}
    with pytest.raises(Failure) as caught:
        restore(kept, *other)
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert name in caught.value.outcome.cause
    assert all(torch.equal(tensor, before[n]) for n, tensor in capture(*other).items())


def test_c05_a_renamed_layer_is_said_to_be_renamed():
    networks, optimizers = build()
    kept = {name: tensor.clone() for name, tensor in capture(networks, optimizers).items()}
    kept["networks/model/first.weight"] = kept.pop("networks/model/0.weight")
    with pytest.raises(Failure, match=r"missing networks/model/0.weight .*perhaps renamed from networks/model/first"):
        restore(kept, *build())


def test_state_that_is_no_tensor_is_refused_rather_than_lost():
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(Failure, match="_extra_state, which is no tensor"):
        capture({"model": Counting(2, 2)}, {})
