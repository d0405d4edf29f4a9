"""Numbers that an optimizer keeps beside tensors: in commits, and in what a rollback puts back."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain.checkpoint.numbers import GIVEN, mark
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.state import capture, put_back, restore
from drivetrain.spec.exits import Exit, Failure
from own_kinds import Counting


def build(cls=Counting):
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    names, parameters = zip(*network.named_parameters(), strict=True)
    optimizer = cls([{"params": list(parameters), "names": list(names)}], lr=0.1)
    mark(optimizer)
    return {"m": network}, {"m": optimizer}


def train(networks, optimizers, steps):
    for _ in range(steps):
        optimizers["m"].zero_grad()
        networks["m"](torch.ones(1, 3)).square().sum().backward()
        optimizers["m"].step()
    return {name: tensor.clone() for name, tensor in capture(networks, optimizers).items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_restored_optimizer_goes_on_as_one_that_never_stopped(before):
    whole, parts, fresh = build(), build(), build()
    kept = train(*parts, before)
    restore(kept, *fresh)
    assert same(train(*fresh, 4), train(*whole, before + 4))
    assert type(fresh[1]["m"].state[next(iter(fresh[0]["m"].parameters()))]["age"]) is int


@pytest.mark.parametrize("before", [0, 1, 3])
def test_what_a_rollback_puts_back_goes_on_as_if_nothing_had_been(before):
    whole, back = build(), build()
    train(*back, before)
    pieces = pieces_of(copy.deepcopy(capture(*back)))
    train(*back, 2)
    put_back(pieces, *back)
    assert same(train(*back, 3), train(*whole, before + 3))


def test_what_the_recipe_gives_is_not_taken_from_a_commit():
    """Another `beta` by an accepted override stays: only what was counted since the start is state."""
    first, other = build(), build()
    kept = train(*first, 2)
    assert not any("beta" in name or "lr" in name for name in kept)
    other[1]["m"].param_groups[0]["beta"] = other[1]["m"].param_groups[0][GIVEN]["beta"] = 0.5
    restore(kept, *other)
    assert other[1]["m"].param_groups[0]["beta"] == 0.5
    assert other[1]["m"].param_groups[0]["k"] == 2


class Changing(Counting):
    """What it keeps comes and goes."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        group = self.param_groups[0]
        group["grow"] = 1.01 if group["k"] % 2 == 0 else 1.02
        for parameter, state in self.state.items():
            state["last"] = None if group["k"] % 2 else parameter.detach().clone()
            state["row"] = parameter.detach().reshape(-1)[: group["k"] % 4].clone()
            parameter.add_(0.1 if state["last"] is None else 0.2)


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_what_comes_and_goes_and_changes_its_shape_is_put_back_and_restored(before):
    whole, parts, fresh = build(Changing), build(Changing), build(Changing)
    kept = train(*parts, before)
    restore(kept, *fresh)
    pieces = pieces_of(kept)
    train(*parts, 1)
    put_back(pieces, *parts)
    expected = train(*whole, before + 4)
    assert same(train(*fresh, 4), expected)
    assert same(train(*parts, 4), expected)


def _count_by_name(optimizer):
    optimizer.state["k"] = optimizer.state.get("k", 0) + 1


def _count_in_an_attribute(optimizer):
    optimizer.k = getattr(optimizer, "k", 0) + 1


def _copy_weights(optimizer):
    optimizer.slow = [optimizer.param_groups[0]["params"][0].detach().clone()]


def _wrap(optimizer):
    optimizer.inner = optimizer.inner if hasattr(optimizer, "inner") else torch.optim.Adam([torch.ones(1)])
    optimizer.inner.state[0] = {"step": 1}


def _group(value):
    def change(optimizer):
        optimizer.param_groups[0]["what"] = value

    return change


def _state(slot, value):
    def change(optimizer):
        for state in optimizer.state.values():
            state[slot] = value

    return change


UNKEPT = {
    "state under 'k', which is none of its parameters": _count_by_name,
    "changes in its attribute 'k'": _count_in_an_attribute,
    "changes in its attribute 'slow'": _copy_weights,
    "changes in its attribute 'inner'": _wrap,
    "'what', a Tensor that changes": _group(torch.ones(())),
    "'what', a list that changes": _group([1]),
    "'what', a float64 that changes": _group(np.float64(1)),
    "'seen', a list, for": _state("seen", [1]),
    "0, an int, for": _state(0, 1),
    "'a/b', an int, for": _state("a/b", 1),
    "more than 64 bits": _state("k", 1 << 70),
    "has added a parameter group": lambda optimizer: optimizer.add_param_group({"params": [torch.ones(1)]}),
}


@pytest.mark.parametrize("words", UNKEPT)
def test_what_no_commit_could_hold_is_refused_and_not_lost_in_silence(words):
    networks, optimizers = build()
    train(networks, optimizers, 1)
    UNKEPT[words](optimizers["m"])
    with pytest.raises(Failure) as raised:
        capture(networks, optimizers)
    assert raised.value.outcome.code is Exit.BAD_RECIPE
    assert words in raised.value.outcome.cause


def test_torchs_own_optimizers_keep_nothing_beside_what_commits_hold():
    for name in ("ASGD", "Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"):
        whole, parts, fresh = (build(getattr(torch.optim, name)) for _ in range(3))
        kept = train(*parts, 3)
        restore(kept, *fresh)
        assert same(train(*fresh, 3), train(*whole, 6)), name
