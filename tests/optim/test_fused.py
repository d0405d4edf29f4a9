import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from drivetrain.optim.fused import FusedAdam
from drivetrain.optim.recipe import AdamW, Constant
from drivetrain.optim.updater import build_updaters
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

SHAPES = [(3, 4), (4,), (), (2, 3, 2), (5,)]


def build(kind=torch.optim.AdamW, dtype=torch.float32, **options):
    """An optimizer of two groups, with tensors of any shape."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02, "weight_decay": 0.0}]
    return kind(groups, lr=0.01, weight_decay=0.1, fused=True, **options)


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def give_gradients(optimizer, step, without=()):
    generator = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(parameters_of(optimizer)):
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.grad = None if number in without else gradient


def gradients_of(optimizer):
    return [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]


def everything(optimizer):
    states = [optimizer.state.get(parameter, {}) for parameter in parameters_of(optimizer)]
    return [parameter.detach() for parameter in parameters_of(optimizer)] + [
        state[slot] for state in states for slot in sorted(state)
    ]


def require_equal(some, others):
    some, others = everything(some), everything(others)
    assert len(some) == len(others)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(some, others, strict=True))


def load_again(optimizer):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def forget_one(optimizer):
    optimizer.state.pop(parameters_of(optimizer)[1], None)


def forget_all(optimizer):
    optimizer.state.clear()


def replace_slots(optimizer):
    for state in optimizer.state.values():
        state.update({slot: tensor * 2 for slot, tensor in state.items()})


def count_in_place(optimizer):
    for state in optimizer.state.values():
        state["step"] += 3


def change_rates(optimizer):
    optimizer.param_groups[1].update(lr=0.005, weight_decay=0.3, eps=1e-6, betas=(0.8, 0.9))


BETWEEN = [load_again, forget_one, forget_all, replace_slots, count_in_place, change_rates]


@settings(max_examples=60)
@given(
    kind=st.sampled_from([torch.optim.Adam, torch.optim.AdamW]),
    amsgrad=st.booleans(),
    maximize=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, len(SHAPES) - 1), max_size=2), st.none() | st.sampled_from(BETWEEN)),
        min_size=1,
        max_size=8,
    ),
)
def test_its_bits_are_those_of_torch_whatever_happens_between_steps(kind, amsgrad, maximize, dtype, steps):
    ours, torchs = (build(kind, dtype, amsgrad=amsgrad, maximize=maximize) for _ in range(2))
    fused = FusedAdam(ours)
    for number, (without, between) in enumerate(steps):
        for optimizer in (ours, torchs):
            give_gradients(optimizer, number, without)
            if between:
                between(optimizer)
        fused.step(gradients_of(ours))
        torchs.step()
        require_equal(ours, torchs)


def test_torchs_own_step_is_made_once_at_the_start_and_not_again(monkeypatch):
    optimizer, called = build(), []
    monkeypatch.setattr(optimizer, "step", lambda own=optimizer.step: called.append(own()))
    fused = FusedAdam(optimizer)
    for step in range(4):
        give_gradients(optimizer, step)
        fused.step(gradients_of(optimizer))
    assert len(called) == 1
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_hooks_are_called_as_before(everywhere, before):
    ours, torchs = build(), build()
    fused, seen = FusedAdam(ours), []

    def hook(optimizer, args, kwargs):
        seen.append(optimizer)

    for step in range(3):
        give_gradients(ours, step)
        give_gradients(torchs, step)
        if step == 1:
            if everywhere:
                handle = (register_optimizer_step_pre_hook if before else register_optimizer_step_post_hook)(hook)
            else:
                handle = (ours.register_step_pre_hook if before else ours.register_step_post_hook)(hook)
        fused.step(gradients_of(ours))
        if step == 1:
            handle.remove()
        torchs.step()
    assert seen == [ours]
    require_equal(ours, torchs)


def test_sparse_gradients_are_refused_as_torch_does():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.AdamW(embedding.parameters(), fused=True)
    embedding.weight.grad = torch.ones_like(embedding.weight)
    fused = FusedAdam(optimizer)
    fused.step(gradients_of(optimizer))
    embedding.weight.grad = None
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises((RuntimeError, NotImplementedError)):
        fused.step(gradients_of(optimizer))


class Own(torch.optim.AdamW):
    """May do anything in its step."""


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda plain: torch.optim.AdamW(plain, fused=False),
        lambda plain: torch.optim.AdamW(plain),
        lambda plain: torch.optim.SGD(plain, fused=True),
        lambda plain: Own(plain, fused=True),
        lambda plain: torch.optim.AdamW([*plain, nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))], fused=True),
        lambda plain: torch.optim.AdamW([nn.Parameter(torch.zeros(2, device="meta"))]),
    ],
)
def test_anything_but_plain_fused_adam_steps_as_torch_has_it(optimizer):
    assert not FusedAdam.fits(optimizer([nn.Parameter(torch.zeros(2))]))


def test_an_updater_steps_by_it():
    network = nn.Linear(3, 2)
    updater = build_updaters({"m": network}, AdamW(), Constant(), 10, Scale(Batches(1)))["m"]
    assert FusedAdam.fits(updater.optimizer)
    for _ in range(2):
        network(torch.ones(3)).sum().backward()
        updater.step(updater.gradients)
    counts = [state["step"] for state in updater.optimizer.state.values()]
    assert len({count.untyped_storage().data_ptr() for count in counts}) == 1
