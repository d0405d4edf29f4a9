"""The loss of logits that are never there whole is that of all logits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain.data.stacked import IGNORED
from drivetrain.engine.losses import objective
from drivetrain.tasks.language_model.linear_cross_entropy import linear_cross_entropy
from drivetrain.tasks.language_model.recipe import LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask


def drawn(tokens, vocabulary, left_out, dtype=torch.float32):
    rng = torch.Generator().manual_seed(tokens * vocabulary)
    x = torch.randn(tokens, 8, generator=rng, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, 8, generator=rng, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,), generator=rng)
    targets[: int(left_out * tokens)] = IGNORED
    return x, weight, targets


def plain(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")


def apart(found, wanted):
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))


@given(st.integers(1, 70), st.integers(2, 40), st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 80))
def test_values_and_gradients_are_those_of_all_logits(tokens, vocabulary, left_out, chunk):
    x, weight, targets = drawn(tokens, vocabulary, left_out)
    wanted = torch.autograd.grad(plain(x, weight, targets) * 0.3, (x, weight))
    value = linear_cross_entropy(x, weight, targets, chunk)
    found = torch.autograd.grad(value * 0.3, (x, weight))
    assert value.item() == pytest.approx(plain(x, weight, targets).item(), rel=1e-6, abs=1e-6)
    assert max(map(apart, found, wanted)) < 1e-6
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(x, weight, targets, chunk), value)


def test_gradients_are_those_of_differences():
    """By hand: torch's gradcheck passes back through one graph several times."""
    x, weight, targets = drawn(7, 5, 0.3, torch.float64)
    for asked in ((x, weight), (x,), (weight,)):
        given = [each if any(each is other for other in asked) else each.detach() for each in (x, weight)]
        gradients = torch.autograd.grad(linear_cross_entropy(*given, targets, 3), asked)
        for each, gradient in zip(asked, gradients, strict=True):
            for place in range(each.numel()):
                assert gradient.flatten()[place].item() == pytest.approx(
                    slope(x, weight, targets, each, place), abs=1e-7
                )


def test_under_autocast_it_rounds_as_the_plain_one_does():
    x, weight, targets = drawn(64, 40, 0.3)
    exact = torch.autograd.grad(plain(x, weight, targets), (x, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = [plain(x, weight, targets), linear_cross_entropy(x, weight, targets, 16)]
    assert values[1].item() == pytest.approx(values[0].item(), rel=1e-6)
    off = []
    for value in values:
        gradients = torch.autograd.grad(value, (x, weight))
        assert all(gradient.dtype == torch.float32 for gradient in gradients)
        off.append(max(map(apart, gradients, exact)))
    assert 0 < off[1] <= 1.1 * off[0]  # chunks of a weight's gradient are added up in float32


def test_large_logits_do_not_overflow():
    x, weight, targets = drawn(16, 5, 0.0)
    value = linear_cross_entropy(x * 1e4, weight, targets, 4)
    assert value.item() == pytest.approx(plain(x * 1e4, weight, targets).item(), rel=1e-6)


def test_a_second_pass_back_is_refused_and_never_wrong():
    x, weight, targets = drawn(16, 5, 0.0)
    value = linear_cross_entropy(x, weight, targets, 4)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="was passed back through already"):
        value.backward()


class Largest(TorchDispatchMode):
    """The most numbers in one tensor that an operation comes to."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


@torch.no_grad()
def slope(x, weight, targets, moved, place, step=1e-5):
    values = []
    for way in (step, -step):
        moved.view(-1)[place] += way
        values.append(linear_cross_entropy(x, weight, targets, 3).item())
        moved.view(-1)[place] -= way
    return (values[0] - values[1]) / (2 * step)


def sizes_of(chunk, vocabulary=600):
    model = Llama(width=16, depth=1, heads=2, context=32, vocabulary=vocabulary)
    task = LanguageModelTask(LanguageModel(model=model, logits_chunk=chunk))
    torch.manual_seed(0)
    nets = task.networks()
    batch = task.collate(np.random.default_rng(0).integers(0, vocabulary, (4, 33)).astype(np.uint16))
    with Largest() as largest:
        total = objective(task.loss(nets, batch), task.counts(batch))
        total.backward()
    gradients = {name: parameter.grad for name, parameter in nets["model"].named_parameters()}
    with torch.no_grad():
        assert objective(task.loss(nets, batch), task.counts(batch)).item() == pytest.approx(total.item(), rel=1e-6)
    return largest.numbers, total.item(), gradients


def test_the_task_never_has_more_logits_than_the_recipe_wants():
    """With a tied head, whose gradient comes from both ends."""
    whole, chunked = sizes_of(None), sizes_of(8)
    assert whole[0] == 128 * 600
    assert chunked[0] == 16 * 600, "nothing is larger than the table of tokens"
    assert chunked[1] == pytest.approx(whole[1], rel=1e-6)
    assert max(apart(chunked[2][name], whole[2][name]) for name in whole[2]) < 1e-6
    assert sizes_of("auto")[1] == pytest.approx(whole[1], rel=1e-6)
