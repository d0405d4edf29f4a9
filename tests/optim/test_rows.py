"""Optimizers of rows beside torch's, where all rows move, and beside their formulas, where some do."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from drivetrain.optim.recipe.rows import (
    AdagradRows,
    AdamRows,
    LambRows,
    LarsRows,
    RowwiseAdagradRows,
    SGDRows,
)
from drivetrain.optim.rounding import key_of, round_by_place
from drivetrain.optim.rows import MASTER, HalfRows, Stretches, build_mover
from drivetrain.spec.box import Box

STEPS = 5


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moved(settings, weight, steps=STEPS, rows=None, half=None):
    mover = build_mover(settings, weight.clone(), lambda position: 1.0, half)
    rows = torch.arange(len(weight)) if rows is None else rows
    for step in range(steps):
        mover.advance(step + 1, waits=False)
        mover.rows, mover.gradient = rows, drawn(step, len(rows), weight.shape[1])
        mover.move()
    return mover


@pytest.mark.parametrize(
    ("settings", "torchs"),
    [
        (SGDRows(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (SGDRows(lr=0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
        (
            AdagradRows(lr=0.1, eps=1e-6, initial=0.5, weight_decay=0.01),
            lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6, initial_accumulator_value=0.5, weight_decay=0.01),
        ),
        (
            AdamRows(lr=0.01, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "sgd, decay", "adagrad", "adam"],
)
def test_rows_that_all_move_come_to_what_torchs_optimizer_does(settings, torchs):
    weight = drawn(99, 6, 4)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torchs([parameter])
    for step in range(STEPS):
        parameter.grad = drawn(step, 6, 4)
        optimizer.step()
    assert torch.allclose(moved(settings, weight).weight, parameter, rtol=1e-5, atol=1e-6)


def test_rowwise_adagrad_has_one_mean_square_for_a_row():
    weight = drawn(9, 5, 4)
    found = moved(RowwiseAdagradRows(lr=0.1, eps=1e-8, initial=0.25), weight)
    own, total = weight.clone(), torch.full((5,), 0.25)
    for step in range(STEPS):
        gradient = drawn(step, 5, 4)
        total += gradient.square().mean(1)
        own -= 0.1 * gradient / (total.sqrt() + 1e-8).unsqueeze(1)
    assert torch.allclose(found.weight, own, rtol=1e-5, atol=1e-6)
    assert found.slots["sum"].shape == (5,)


def test_lamb_makes_steps_as_long_as_their_rows():
    weight = drawn(9, 5, 4)
    found = moved(LambRows(lr=0.1, weight_decay=0.05), weight, steps=1)
    gradient = drawn(0, 5, 4)
    change = gradient / (gradient.abs() + 1e-8) + 0.05 * weight
    ratio = weight.norm(dim=1) / change.norm(dim=1)
    assert torch.allclose(found.weight, weight - 0.1 * ratio.unsqueeze(1) * change, rtol=1e-4, atol=1e-5)
    assert torch.allclose((found.weight - weight).norm(dim=1), 0.1 * weight.norm(dim=1), rtol=1e-4)


def test_lars_has_a_rate_for_each_row_and_momentum():
    weight = drawn(9, 5, 4)
    found = moved(LarsRows(lr=2.0, trust=0.1, momentum=0.9, weight_decay=0.01), weight)
    own, momentum = weight.clone(), torch.zeros(5, 4)
    for step in range(STEPS):
        gradient = drawn(step, 5, 4)
        length = own.norm(dim=1)
        rate = 2.0 * 0.1 * length / (gradient.norm(dim=1) + 0.01 * length + 1e-8)
        momentum = 0.9 * momentum + rate.unsqueeze(1) * (gradient + 0.01 * own)
        own = own - momentum
    assert torch.allclose(found.weight, own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [SGDRows(), AdagradRows(), RowwiseAdagradRows(), AdamRows(), LambRows(), LarsRows()],
    ids=lambda settings: settings.kind,
)
def test_rows_that_are_not_looked_up_rest_with_all_their_state(settings):
    weight = drawn(9, 6, 4)
    found = moved(settings, weight, rows=torch.tensor([1, 4]))
    still = [0, 2, 3, 5]
    assert torch.equal(found.weight[still], weight[still])
    assert not torch.equal(found.weight[[1, 4]], weight[[1, 4]])
    for tensor in found.slots.values():
        assert torch.equal(tensor[still], torch.zeros_like(tensor[still]))
    assert int(found.moves) == STEPS


def test_a_network_that_waits_does_not_move_its_rows():
    mover = build_mover(SGDRows(lr=1.0), torch.ones(2, 2), lambda position: 1.0)
    mover.advance(1, waits=True)
    mover.rows, mover.gradient = torch.tensor([0]), torch.ones(1, 2)
    mover.move()
    assert torch.equal(mover.weight, torch.ones(2, 2))


@pytest.mark.parametrize("settings", [SGDRows(weight_decay=0.1), AdamRows(), LambRows(weight_decay=0.1)])
def test_masters_of_bf16_rows_are_what_fp32_rows_are(settings):
    weight, rows = drawn(3, 6, 4).bfloat16(), torch.tensor([0, 2, 5])
    found = moved(settings, weight, rows=rows, half=HalfRows(True, 0, None))
    wanted = moved(settings, weight.float(), rows=rows)
    assert torch.equal(found.slots[MASTER], wanted.weight)
    assert torch.equal(found.weight, wanted.weight.bfloat16())
    found.weight.zero_()
    found.restart()
    assert not found.slots[MASTER].any()


def stretches(*parts):
    names, at, first = zip(*parts, strict=True)
    return Stretches(names, torch.tensor(at), torch.tensor(first))


def test_rows_are_rounded_by_their_place_in_the_table_whoever_holds_them():
    """Two tables of 5 and 4 rows, together, and with the last rows of each elsewhere."""
    numbers, at = drawn(7, 9, 3), (4, 1)
    wanted = torch.empty(9, 3, dtype=torch.bfloat16)
    for name, part in (("a", slice(0, 5)), ("b", slice(5, 9))):
        own = numbers[part]
        round_by_place(own, Box.of_whole(tuple(own.shape)), key_of(11, *at, name), wanted[part])
    together = HalfRows(False, 11, stretches(("a", 0, 0), ("b", 5, 0)))
    some = torch.tensor([1, 4, 5, 8])
    assert torch.equal(together.rounded(some, numbers[some], at), wanted[some])
    apart = HalfRows(False, 11, stretches(("b", 0, 2), ("a", 2, 3)))
    assert torch.equal(apart.rounded(torch.tensor([0, 1, 2, 3]), numbers[[7, 8, 3, 4]], at), wanted[[7, 8, 3, 4]])
    assert not torch.equal(together.rounded(some, numbers[some], (5, 1)), wanted[some])


def test_steps_that_are_smaller_than_a_rows_last_digit_are_not_lost_by_chance():
    weight, half = torch.ones(400, 2).bfloat16(), HalfRows(False, 0, stretches(("a", 0, 0)))
    mover = build_mover(SGDRows(lr=1.0), weight, lambda position: 1.0, half)
    for step in range(20):
        mover.advance(step + 1, waits=False)
        mover.at = step, 0
        mover.rows, mover.gradient = torch.arange(400), torch.full((400, 2), 2.0**-12)
        mover.move()
    assert float(weight.float().mean()) == pytest.approx(1 - 20 * 2.0**-12, abs=1e-3)
    assert float(1 - weight.float().mean()) > 0.001


class Factors(TorchFunctionMode):
    """Notes the factors of every sum by rows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if "index_add" in getattr(function, "__name__", ""):
            self.seen.append((kwargs or {}).get("alpha", 1))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kind", [SGDRows, AdagradRows, RowwiseAdagradRows, AdamRows, LambRows, LarsRows])
def test_rows_are_never_added_with_a_factor_which_takes_torch_twice_as_long(kind):
    with Factors() as factors:
        moved(kind(lr=0.1, weight_decay=0.1), drawn(1, 6, 4), rows=torch.tensor([1, 4]))
    assert factors.seen == [1] * STEPS
