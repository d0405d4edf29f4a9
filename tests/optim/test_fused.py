import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from drivetrain.checkpoint.snapshot import Arena
from drivetrain.checkpoint.state import capture, put_back, restore
from drivetrain.optim import fused as fused_module
from drivetrain.optim.fused import FusedAdam
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.optim.uncompiled import plain_step
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


def empty_one(optimizer):
    optimizer.state[parameters_of(optimizer)[2]].clear()


def keep_something_else(optimizer):
    optimizer.state["other"] = {"step": torch.tensor(7.0)}


def go_unfused(optimizer):
    optimizer.param_groups[0]["fused"] = False
    optimizer.__dict__.pop("found_inf", None)  # only fused ones know it
    optimizer.__dict__.pop("grad_scale", None)


def skip_by_itself(optimizer):
    if all(group["fused"] for group in optimizer.param_groups):
        optimizer.found_inf = torch.tensor(1.0)


def scale(optimizer):
    if all(group["fused"] for group in optimizer.param_groups):
        optimizer.grad_scale = torch.tensor(2.0)


def step_once_more(optimizer):
    optimizer.step()


def swap_groups(optimizer):
    optimizer.param_groups.reverse()


def count_in_place(optimizer):
    for state in filter(None, optimizer.state.values()):  # one may have been emptied
        state["step"] += 3


def change_rates(optimizer):
    optimizer.param_groups[1].update(lr=0.005, weight_decay=0.3, eps=1e-6, betas=(0.8, 0.9))


BETWEEN = [
    load_again,
    forget_one,
    forget_all,
    empty_one,
    keep_something_else,
    replace_slots,
    count_in_place,
    change_rates,
    go_unfused,
    skip_by_itself,
    scale,
    step_once_more,
    swap_groups,
]


@settings(max_examples=80)
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
    monkeypatch.setattr(fused_module, "plain_step", lambda own: called.append(plain_step(own)))
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


class Odd(torch.Tensor):
    """May do anything with a kernel."""


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (torch.optim.SGD, []),
        (Own, []),
        (torch.optim.AdamW, [torch.zeros(2, dtype=torch.bfloat16)]),
        (torch.optim.AdamW, [torch.zeros(2, device="meta")]),
        (torch.optim.AdamW, [torch.zeros(2).as_subclass(Odd)]),
    ],
)
def test_anything_but_adam_of_plain_tensors_steps_as_torch_has_it(kind, others):
    parameters = [nn.Parameter(tensor) for tensor in [torch.zeros(2), *others]]
    assert not FusedAdam.fits(kind(parameters))
    assert FusedAdam.fits(torch.optim.AdamW(parameters[:1]))


@pytest.mark.parametrize("other", [{"fused": False}, {"foreach": True}])
def test_an_optimizer_that_is_not_fused_steps_as_torch_has_it(other):
    ours, torchs = (torch.optim.AdamW(parameters_of(build()), **other) for _ in range(2))
    fused = FusedAdam(ours)
    for number in range(3):
        for optimizer in (ours, torchs):
            give_gradients(optimizer, number)
        fused.step(gradients_of(ours))
        torchs.step()
        require_equal(ours, torchs)


@pytest.mark.parametrize("between", [go_unfused, skip_by_itself, scale])
def test_what_the_kernel_alone_would_not_do_is_torchs(between):
    ours, torchs = build(), build()
    fused = FusedAdam(ours)
    for number in range(4):
        for optimizer in (ours, torchs):
            give_gradients(optimizer, number)
            if number == 2:
                between(optimizer)
        fused.step(gradients_of(ours))
        torchs.step()
        require_equal(ours, torchs)


def test_a_second_one_takes_over_where_the_first_has_counted():
    ours, torchs = build(), build()
    steppers = [FusedAdam(ours), FusedAdam(ours)]
    for number in range(6):
        for optimizer in (ours, torchs):
            give_gradients(optimizer, number)
        steppers[number // 2 % 2].step(gradients_of(ours))
        torchs.step()
        require_equal(ours, torchs)


def test_what_a_ring_puts_back_and_a_commit_restores_goes_on_as_with_torch():
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network_optimizer = build_network_optimizers({"m": network}, AdamW(), Constant(), Horizon(10, Scale(Batches(1))))[
        "m"
    ]
    optimizers = {"m": network_optimizer.optimizer}

    def train():
        for number in range(3):
            give_gradients(network_optimizer.optimizer, number)
            network_optimizer.step(network_optimizer.gradients)
        return {name: tensor.clone() for name, tensor in capture({"m": network}, optimizers).items()}

    train()
    pieces = Arena().take(capture({"m": network}, optimizers))
    commit = {name: tensor.clone() for name, tensor in capture({"m": network}, optimizers).items()}
    expected = train()
    for go_back in (
        lambda: put_back(pieces, {"m": network}, optimizers),
        lambda: restore(commit, {"m": network}, optimizers),
    ):
        go_back()
        found = train()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert {float(tensor) for name, tensor in expected.items() if name.endswith("/step")} == {6.0}


def test_an_updater_steps_by_it():
    network = nn.Linear(3, 2)
    network_optimizer = build_network_optimizers({"m": network}, AdamW(), Constant(), Horizon(10, Scale(Batches(1))))[
        "m"
    ]
    assert FusedAdam.fits(network_optimizer.optimizer)
    for _ in range(2):
        network(torch.ones(3)).sum().backward()
        network_optimizer.step(network_optimizer.gradients)
    counts = [state["step"] for state in network_optimizer.optimizer.state.values()]
    assert len({count.untyped_storage().data_ptr() for count in counts}) == 1
