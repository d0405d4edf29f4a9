"""Activations that are computed again: the same bits, less memory, and nothing left behind."""

from __future__ import annotations

import random
import weakref
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointError

from drivetrain.engine.activations import other_tensors, recompute_activations
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.runtime.seeds import seed_generators
from drivetrain.spec.exits import Exit, Failure
from engine.test_meshes import started
from ranks_mesh import Case, engine_of, train

CPU = torch.device("cpu")
CHOICES = ("keep", "selective", "recompute")

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]


class Block(nn.Module):
    """All that a second pass could do otherwise: running statistics, a weight that moves a buffer, drawn numbers of
    each kind, a count of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(8, 8))
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.drawn = torch.Generator()

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        x = x + self.dropout(torch.tanh(self.norm(self.linear(x))))
        self.calls = getattr(self, "calls", 0) + 1
        own = self.calls + torch.rand(8, generator=self.drawn)
        return x * (own * scale + random.random() + float(np.random.rand()))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.last(x)


def blocks(chosen) -> Blocks:
    torch.manual_seed(0)
    network = Blocks()
    recompute_activations("model", network, chosen, ["blocks.*"], CPU)
    return network


def passed(network: nn.Module, steps: int = 2) -> list[Tensor]:
    """Everything that passes leave: losses, gradients, buffers, and where generators stand."""
    found = []
    for step in range(steps):
        seed_generators(CPU, step)
        random.seed(step)
        np.random.seed(step)
        loss = network(torch.randn(16, 8)).square().mean()
        loss.backward()
        found += [loss.detach(), torch.rand(1), torch.tensor([random.random(), np.random.rand()])]
    found += [p.grad for p in network.parameters()]
    found += [torch.tensor(block.calls) for block in network.blocks]
    found += [block.drawn.get_state() for block in network.blocks]
    return found + [buffer.clone() for buffer in network.buffers()]


@pytest.mark.parametrize("chosen", ["selective", "recompute", {"blocks.0": "keep", "blocks.*": "recompute"}])
def test_a_second_pass_sees_what_the_first_one_saw_and_leaves_nothing_behind(chosen):
    wanted = passed(blocks("keep"))
    found = passed(blocks(chosen))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("chosen", ["selective", "recompute"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_has_the_same_bits(chosen, tied):
    case = Case(tied=tied, dropout=0.2, steps=3)
    wanted = vars(train(engine_of(Mesh(Group()), case), case))
    chosen = replace(case, activations=chosen)
    assert vars(train(engine_of(Mesh(Group()), chosen), chosen)) == wanted


@pytest.mark.parametrize(
    "sizes", [{"shard": 2}, {"tensor": 2}, {"replicate": 2, "shard": 2}, {"shard": 2, "tensor": 2}], ids=str
)
def test_a_mesh_has_the_same_bits(sizes, tmp_path, importable):
    by_name = {"layers.0": "recompute", "layers.1.mlp": "selective"}
    cases = [Case(dropout=0.2, steps=3, activations=chosen) for chosen in (*CHOICES, by_name)]
    keep, *others = started(tmp_path, "tables", sizes, [asdict(case) for case in cases])[0]
    assert all(other == keep for other in others)


class Live(TorchDispatchMode):
    """The bytes of all that operations have made and that is still there, and how often each was made."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self._seen: dict[int, tuple[weakref.ref, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self.counts[name] = self.counts.get(name, 0) + 1
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self._seen[storage._cdata] = weakref.ref(leaf), storage.nbytes()
        return made

    @property
    def bytes(self) -> int:
        return sum(size for there, size in self._seen.values() if there() is not None)


def test_less_is_kept_and_more_is_computed():
    kept, products, shapes = {}, {}, {}
    for chosen in CHOICES:
        torch.manual_seed(0)
        network = nn.ModuleDict({"blocks": nn.Sequential(*(mlp() for _ in range(4)))})
        recompute_activations("model", network, chosen, ["blocks.*"], CPU)
        x = torch.randn(64, 32, requires_grad=True)
        with Live() as live:
            loss = network["blocks"](x).sum()
            kept[chosen] = live.bytes
            loss.backward()
        products[chosen], shapes[chosen] = live.counts["addmm"], live.counts["gelu"]
    assert kept["recompute"] < kept["selective"] < kept["keep"]
    # Eight linear layers: the last of a block need not be computed again, since nothing behind it asks.
    assert products == {"keep": 8, "selective": 8, "recompute": 12}
    assert shapes == {"keep": 4, "selective": 8, "recompute": 8}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))


def test_evaluation_computes_once():
    network = blocks("recompute").eval()
    with torch.no_grad(), Live() as live:
        network(torch.randn(4, 8))
    assert live.counts["tanh"] == 3


def test_a_penalty_on_gradients_passes_back_twice():
    found = []
    for chosen in ("keep", "recompute"):
        network = blocks(chosen)
        random.seed(0)
        np.random.seed(0)
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
        torch.manual_seed(1)
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
        found.append([p.grad for p in network.parameters() if p.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_an_argument_of_any_name_reaches_the_module():
    class Debugged(nn.Linear):
        def forward(self, x: Tensor, *, debug: bool = False, use_reentrant: float = 0.0) -> Tensor:
            return super().forward(x) * use_reentrant if debug else x

    network = nn.Sequential(Debugged(2, 2))
    recompute_activations("model", network, {"0": "recompute"}, [], CPU)
    x = torch.ones(1, 2)
    wanted = 2 * nn.functional.linear(x, network[0].weight, network[0].bias)
    assert torch.equal(network[0](x, debug=True, use_reentrant=2.0), wanted)


def test_a_module_that_comes_to_something_else_is_told():
    class Counting(nn.Module):
        calls = []  # neither a number nor a text: it stays as it is

        def forward(self, x: Tensor) -> Tensor:
            self.calls.append(1)
            return x.exp() if len(self.calls) % 2 else x[:2].exp()

    network = nn.Sequential(Counting(), nn.Linear(4, 4))
    recompute_activations("model", network, {"0": "recompute"}, [], CPU)
    with pytest.raises(CheckpointError) as caught:
        network(torch.randn(3, 4, requires_grad=True)).sum().backward()
    told = other_tensors(caught.value).outcome
    assert told.code is Exit.BAD_RECIPE
    assert "came to other tensors" in told.cause


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2).square()


def test_a_module_that_changes_its_argument_is_refused():
    network = nn.Sequential(nn.Linear(4, 4), InPlace())
    recompute_activations("model", network, {"1": "recompute"}, [], CPU)
    with pytest.raises(Failure, match="a module of class InPlace changes its arguments in place") as caught:
        network(torch.randn(2, 4))
    assert caught.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.parametrize(
    ("chosen", "units", "words"),
    [
        ({"block.*": "recompute"}, ["blocks.*"], "activations of model: no module is called 'block.*'"),
        ({"blocks": "recompute", "blocks.*": "selective"}, [], "blocks.0 lies within blocks"),
        ({"blocks": "selective", "blocks.1": "keep"}, [], "blocks.1 lies within blocks"),
        ("recompute", [], "no repeated blocks"),
    ],
)
def test_what_names_nothing_or_twice_the_same_is_refused(chosen, units, words):
    with pytest.raises(Failure) as caught:
        recompute_activations("model", Blocks(), chosen, units, CPU)
    assert caught.value.outcome.code is Exit.BAD_RECIPE
    assert words in caught.value.outcome.cause
