"""Networks cut into stages: what each has, what it draws, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drivetrain.engine.dropout import Dropout
from drivetrain.engine.parallel_plan import ParallelPlan, derived
from drivetrain.engine.placement import placed
from drivetrain.engine.stages import Absent, dealt, keep_stages, stages_of, with_chunks
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import MeshSizes

PLAN = ParallelPlan(units=("blocks.*",), stages=("first", "blocks.*", "last"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 4), Dropout(0.5)

    def forward(self, x):
        return x + self.dropout(self.layer(self.dropout(x)))


class Chain(nn.Module):
    def __init__(self, depth: int = 4, **more: Any):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.last = nn.Linear(4, 4)
        for name, module in more.items():
            setattr(self, name, module)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def cut(network: nn.Module, place: int, places: int = 2, plan: ParallelPlan = PLAN, virtual: int = 1) -> nn.Module:
    """A network as a rank of a pipeline has it."""
    mesh = Mesh(Group(place, places), MeshSizes(pipeline=places), virtual_stages=virtual)
    keep_stages("net", network, plan, mesh)
    with_chunks(network)
    for chunk in chunks_of(network):
        chunk.connect()
    return network


def chunks_of(network: nn.Module) -> tuple:
    stages = stages_of(network)
    assert stages is not None
    return stages.chunks


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 3), st.integers(0, 3))
def test_stages_have_all_modules_in_order_and_as_many_blocks_as_each_other(blocks, count, before, after):
    names = [f"block {number}" for number in range(blocks)]
    order = [*(f"before {n}" for n in range(before)), *names, *(f"after {n}" for n in range(after))]
    stages = dealt(order, set(names), count)
    if blocks < count:
        assert stages is None
        return
    assert stages is not None
    assert [name for stage in stages for name in stage] == order
    sizes = [sum(name in names for name in stage) for stage in stages]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_absent_modules_hold_nothing_and_names_stay():
    first, second = cut(Chain(3), 0), cut(Chain(3), 1)
    names = [[name for name, _ in network.named_parameters()] for network in (first, second)]
    blocks = [f"blocks.{number}.layer.{kind}" for number in (0, 1) for kind in ("weight", "bias")]
    assert names[0] == ["first.weight", "first.bias", *blocks]
    assert sorted(names[0] + names[1]) == sorted(name for name, _ in Chain(3).named_parameters())
    placement = placed({"net": first}, Mesh(Group(0, 2), MeshSizes(pipeline=2)))
    assert placement.elsewhere == {f"net/{name}" for name in names[1]}
    assert placement.box("optimizers/net/last.weight/exp_avg", (4, 4)) is None
    assert placement.box("networks/net/first.weight", (4, 4)) is not None
    assert placement.holders("optimizers/net/first.weight/step", torch.zeros(())) == (0,)


@pytest.mark.parametrize(("places", "virtual"), [(2, 1), (4, 1), (2, 2)])
def test_stages_one_after_the_other_come_to_the_bits_of_the_whole_network_dropout_too(places, virtual):
    x, whole = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), Chain()
    networks = [cut(Chain(), place, places, virtual=virtual) for place in range(places)]
    chunks = sorted((chunk for network in networks for chunk in chunks_of(network)), key=lambda chunk: chunk.number)
    assert [chunk.number for chunk in chunks] == list(range(places * virtual))
    draws: dict[str, int] = {}
    y = None
    for chunk in chunks:
        y, told = chunk.tried((x,), y)
        draws |= {name: count for name, count in told.items() if count}
    assert draws == {f"blocks.{number}": 2 for number in range(4)}
    for training in (True, False):
        received = None
        for chunk in chunks:
            chunk.expect(draws)
            torch.manual_seed(5)
            received = chunk((x,), received)
        for network in (whole, *networks):
            network.train(not training)  # the next time
        whole.train(training)
        torch.manual_seed(5)
        assert received is not None
        assert torch.equal(received, whole(x)), training


def test_a_weight_that_two_stages_have_is_held_by_both_and_counted_once():
    networks = []
    for place in range(2):
        network = Chain()
        network.last.weight = network.first.weight
        networks.append(cut(network, place))
    for place, network in enumerate(networks):
        assert network.last.weight is network.first.weight
        held = placed({"net": network}, Mesh(Group(place, 2), MeshSizes(pipeline=2))).held["net/first.weight"]
        assert (held.holders, held.places) == ((0, 1), (0, 1))
    assert isinstance(networks[0].blocks[2], Absent)


class Between(Chain):
    def forward(self, x):
        x = self.first(x).tanh()
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Beside(Chain):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class Backwards(Chain):
    def forward(self, x):
        x = self.first(x)
        for block in reversed(self.blocks):
            x = block(x)
        return self.last(x)


class Behind(Chain):
    def forward(self, x):
        return super().forward(x) * 2


class Shortened(Chain):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Between, "what blocks.0 is given first is not what first has made"),
        (Beside, "what blocks.1 is given first is not what blocks.0 has made"),
        (Backwards, "the network calls blocks.3 where the plan's stages have blocks.0"),
        (Behind, "the network does not return what last has made"),
        (Shortened, "the network does not call last"),
    ],
)
def test_what_a_network_does_between_its_modules_is_refused_on_every_stage(kind, told, place):
    (chunk,) = chunks_of(cut(kind(), place))
    with pytest.raises(Failure, match=told) as caught:
        chunk.tried((torch.randn(2, 4),), torch.randn(2, 4) if place else None)
    assert caught.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.parametrize(
    ("network", "plan", "told"),
    [
        (Chain(1), PLAN, "net has 1 repeated blocks, fewer than 2 stages"),
        (Chain(), ParallelPlan(units=("blocks.*",)), "nothing says which modules the stages of net have"),
        (Chain(), ParallelPlan(units=("blocks.*",), stages=("first", "blocks.*")), "last.weight lies in no module"),
        (Chain(), ParallelPlan(units=("blocks.*",), stages=("first", "layers.*")), r"no module is called 'layers\.\*'"),
        (Chain(norm=nn.BatchNorm1d(4, affine=False)), PLAN, "norm.num_batches_tracked is a buffer that commits keep"),
        (Chain(drop=nn.Dropout(0.1)), PLAN, "net.drop is torch's Dropout"),
    ],
)
def test_what_stages_cannot_have_is_named(network, plan, told):
    with pytest.raises(Failure, match=told) as caught:
        cut(network, 0, plan=plan)
    assert caught.value.outcome.code is Exit.BAD_RECIPE


def test_stages_are_derived_where_blocks_lie_between_a_first_and_a_last_part():
    assert derived(Chain(2)).stages == ("first", "blocks.0", "blocks.1", "last")
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    network = nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 4))
    assert derived(network).stages == ("0", "1", "2", "3", "4")
    for place in range(2):
        (chunk,) = chunks_of(cut(network if place else nn.Sequential(*network), place, plan=derived(network)))
        chunk.tried((torch.randn(2, 4),), torch.randn(2, 4) if place else None)
    nested = nn.ModuleDict({"a": nn.ModuleDict({"b": nn.Sequential(Block(), Block())})})
    assert derived(nested).stages == ()
