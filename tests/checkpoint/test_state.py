import pytest
import torch
from torch import nn

from drivetrain.checkpoint.commit import Commits, StateTree
from drivetrain.checkpoint.state import capture, initial_weights, network_tensors, restore
from drivetrain.checkpoint.tensors import write_tensors
from drivetrain.runtime.group import Group
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


def test_initial_weights_come_from_a_run_a_commit_or_a_file(tmp_path):
    networks, optimizers = build()
    train(networks, optimizers)
    tensors = capture(networks, optimizers)
    Commits(tmp_path, Group()).save(3, StateTree(tensors, {}), {}, 3)
    write_tensors(tmp_path / "w.safetensors", network_tensors(tensors)["model"])
    for path in (tmp_path, tmp_path / "checkpoints" / "step-00000003", tmp_path / "w.safetensors"):
        fresh, _ = build(seed=4)
        assert initial_weights(path, fresh, None) == 9
        assert torch.equal(fresh["model"][0].weight, networks["model"][0].weight)


def test_initial_weights_that_are_not_there_or_do_not_fit(tmp_path):
    networks, optimizers = build()
    with pytest.raises(Failure) as caught:
        initial_weights(tmp_path / "nowhere", networks, None)
    assert caught.value.outcome.code == Exit.INPUT_MISSING
    Commits(tmp_path, Group()).save(3, StateTree(capture(networks, optimizers), {}), {}, 3)
    with pytest.raises(Failure) as caught:
        initial_weights(tmp_path, build(width=5)[0], None)
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
