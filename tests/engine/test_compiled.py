"""What of a network is given to torch's compiler: all of it, or each repeated block, without what must stay outside."""

from functools import partial

import pytest
import torch
from torch import nn

import compiled
from drivetrain.engine.activations import recompute_activations
from drivetrain.engine.compiled import compile_blocks, compile_network
from drivetrain.engine.tables.module import Embeddings, Lookup, Table
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Compile


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are made, by a compiler that takes them as they are."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(nn.Module, "compile", partialmethod_of(backend))
    return made


def partialmethod_of(backend):
    def compile_(self, **options):
        self._compiled_call_impl = torch.compile(self._call_impl, **options)

    return compile_


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x)


class OwnSequential(nn.Sequential):
    pass


@pytest.mark.parametrize(
    "make",
    [
        Own,
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()),
        lambda: OwnSequential(nn.Linear(3, 2)),
        lambda: nn.Linear(3, 2),
    ],
)
def test_networks_of_torchs_own_classes_are_compiled_too(make, graphs):
    network, x = make(), torch.ones(4, 3)
    plain, names = network(x), list(network.state_dict())
    compile_network(network, Compile())
    assert torch.equal(network(x), plain)
    assert len(graphs) == 1
    assert list(network.state_dict()) == names
    network(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(("make", "units"), [(compiled.Deep, ("blocks.*",)), (compiled.Linears, ("blocks.*",))])
def test_equal_blocks_share_a_graph_and_keep_names_and_numbers(make, units, graphs):
    network, x = make(), torch.ones(4, 3, requires_grad=True)
    plain, names = network(x), list(network.state_dict())
    assert compile_blocks("model", network, units, Compile(scope="block")) == ["blocks.0", "blocks.1", "blocks.2"]
    assert torch.equal(network(x), plain)
    assert len(graphs) == 1
    assert list(network.state_dict()) == names
    network(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_of_units_within_one_another_the_outermost_are_compiled(graphs):
    units = ("blocks", "blocks.*", "first")
    assert compile_blocks("model", compiled.Deep(), units, Compile(scope="block")) == ["first", "blocks"]


def test_a_network_without_repeated_blocks_is_refused():
    with pytest.raises(Failure, match="model has no repeated blocks") as refused:
        compile_blocks("model", nn.Linear(3, 2), (), Compile(scope="block"))
    assert refused.value.outcome.code is Exit.BAD_RECIPE


def test_a_part_of_a_compiled_block_is_not_computed_again():
    network, cpu = compiled.Deep(), torch.device("cpu")
    blocks = compile_blocks("model", network, ("blocks.*",), Compile(scope="block"))
    recompute_activations("model", network, {"first": "recompute", "blocks.1": "recompute"}, (), cpu, blocks)
    with pytest.raises(Failure, match=r"blocks\.0\.inner lies within blocks\.0 of model, which is compiled"):
        recompute_activations("model", network, {"blocks.*.inner": "recompute"}, (), cpu, blocks)


def test_tables_stay_outside_of_graphs(graphs):
    class Rated(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = Embeddings([Table("items", 9, 4)], [Lookup("item", "items")])
            self.tables.draw(0)
            self.last = nn.Linear(4, 1)

        def forward(self, ids):
            return self.last(self.tables({"item": ids})["item"])

    network, ids = Rated(), torch.tensor([1, 5])
    plain = network(ids)
    compile_network(network, Compile())
    assert torch.equal(network(ids), plain)
    assert len(graphs) == 1
    assert not any("table" in str(node.target) for node in graphs[0].graph.nodes)
