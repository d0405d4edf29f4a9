"""Attention document by document is attention with a mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain.engine.activations import recompute_activations
from drivetrain.tasks.language_model import llama
from drivetrain.tasks.language_model.document_blocks import blocks_of
from drivetrain.tasks.language_model.llama import within
from drivetrain.tasks.language_model.recipe import LanguageModel, Llama
from drivetrain.tasks.language_model.rows import rows_at
from drivetrain.tasks.language_model.task import LanguageModelTask

CONTEXT = 48
TASK = LanguageModelTask(LanguageModel(model=Llama(width=32, depth=2, heads=4, kv_heads=2, context=CONTEXT)))


def batch_of(samples):
    """Of documents of these lengths in each sample; the rest is padding."""
    owners = torch.full((len(samples), CONTEXT), -1)
    for sample, lengths in enumerate(samples):
        begin = 0
        for number, length in enumerate(lengths):
            owners[sample, begin : begin + length] = number
            begin += length
    tokens = torch.randint(256, owners.shape, generator=torch.Generator().manual_seed(0))
    return {"tokens": tokens, "documents": owners, "targets": tokens.roll(-1, 1).where(owners >= 0, -100)}


def network(seed=0):
    torch.manual_seed(seed)
    nets = TASK.networks()
    for parameter in nets["model"].parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return nets


def passed(nets, batch):
    nets["model"].zero_grad()
    loss = TASK.loss(nets, batch)["loss"].value
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in nets["model"].named_parameters()}


def off_from_the_mask(nets, batch):
    """How far the loss, and the worst of all gradients, are from those of a mask. (The loss is made in float32 in any
    case; of a document of one token queries have a gradient of mere rounding.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "_apart", within)
        wanted = passed(nets, batch)
    found = passed(nets, batch)
    whole = torch.stack([gradient.norm() for gradient in wanted[1].values()]).norm()
    off = [abs(found[0] / wanted[0] - 1)]
    for name, gradient in found[1].items():
        off.append(float((gradient - wanted[1][name]).norm() / wanted[1][name].norm().clamp(min=0.01 * whole)))
    assert passed(nets, batch)[0] == found[0]
    return max(off)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(1, CONTEXT), min_size=1, max_size=12), min_size=1, max_size=4))
def test_losses_and_gradients_are_those_of_the_mask(samples):
    nets = network()
    nets["model"].double()
    assert off_from_the_mask(nets, batch_of(samples)) < 1e-6


def test_in_float32_they_are_as_near_as_rounding_lets_them():
    assert off_from_the_mask(network(), batch_of([[5, 30], [48], [1, 1, 20, 9]])) < 1e-6


@given(st.lists(st.lists(st.integers(1, CONTEXT), min_size=1, max_size=12), min_size=1, max_size=4))
def test_every_position_has_a_place_and_little_is_filled_up(samples):
    owners = batch_of(samples)["documents"]
    blocks = blocks_of(owners)
    assert torch.equal(blocks.rows[blocks.places], torch.arange(owners.numel()))
    assert not blocks.empty[blocks.places].any()
    assert len(blocks.rows) == sum(documents * length for documents, length in blocks.shapes)
    assert int((~blocks.empty).sum()) == owners.numel()
    for documents, length in blocks.shapes:
        assert documents * length <= 16 * documents or length <= CONTEXT
    # Beyond the shortest ones a document is more than half as long as its batch.
    start = 0
    for documents, length in blocks.shapes:
        filled = (~blocks.empty[start : start + documents * length]).view(documents, length).sum(1)
        assert length <= 16 or (2 * filled > length).all()
        start += documents * length


class Squares(TorchDispatchMode):
    """Whether an operation comes to something of positions by positions."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        if isinstance(made, torch.Tensor) and made.shape[-2:] == (CONTEXT, CONTEXT):
            self.seen = True
        return made


@pytest.mark.parametrize("masked", [False, True])
def test_nothing_of_positions_by_positions_is_made(monkeypatch, masked):
    if masked:
        monkeypatch.setattr(llama, "_apart", within)
    nets, batch = network(), batch_of([[20, 28], [40, 8]])
    with Squares() as squares:
        passed(nets, batch)
    assert squares.seen is masked


def test_layers_that_are_computed_again_come_to_the_same_bits():
    batch, found = batch_of([[5, 30], [48]]), []
    for chosen in ("keep", "selective", "recompute"):
        nets = network()
        recompute_activations("model", nets["model"], chosen, ["layers.*"], torch.device("cpu"))
        found.append(passed(nets, batch))
    for loss, gradients in found[1:]:
        assert loss == found[0][0]
        assert all(torch.equal(gradients[name], wanted) for name, wanted in found[0][1].items())


def test_rows_have_the_gradients_of_indexing():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    places, back = torch.tensor([2, 0, 0, 3, 1, 1]), torch.tensor([[1, 2], [4, 5], [0, 0], [3, 3]])
    absent = torch.tensor([[False, False], [False, False], [False, True], [False, True]])
    assert torch.autograd.gradcheck(lambda x: rows_at(x, places, back, absent), (x,))
    assert torch.autograd.gradgradcheck(lambda x: rows_at(x, places, back, absent).square(), (x,))
    assert torch.equal(rows_at(x, places, back, absent), x[places])
