"""Initial weights by name."""

import pytest
import torch
from torch import nn

from drivetrain.engine.drawing import draw, fill_buffers, require_fills
from drivetrain.engine.memory import to_empty
from drivetrain.engine.placement import Held, Placement, replicas
from drivetrain.optim.parts import Part
from drivetrain.runtime.group import Group
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure


class Filled(nn.Module):
    """Two matrices, one of them with two names, and a table that no commit has."""

    def __init__(self, more: bool = False):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False)
        self.last.weight = self.first.weight
        self.other = nn.Linear(6, 6, bias=False)
        if more:
            self.more = nn.Linear(3, 3)
        self.table = nn.Buffer(torch.empty(5), persistent=False)

    def fill(self, name, tensor):
        tensor.copy_(torch.arange(5.0)) if name == "table" else tensor.normal_()


def drawn(more=False, seed=7, held=None):
    with torch.device("meta"):
        network = Filled(more)
    to_empty(network, torch.device("cpu"))
    placement = Placement(replicas(Group()).mesh, held(network)) if held else replicas(Group())
    draw({"model": network}, placement, seed)
    return network, placement


def test_a_tensor_is_a_function_of_the_seed_and_its_name():
    network, _ = drawn()
    again, _ = drawn()
    larger, _ = drawn(more=True)
    assert torch.equal(network.other.weight, again.other.weight)
    assert torch.equal(network.other.weight, larger.other.weight), "others do not matter"
    assert not torch.equal(network.other.weight, drawn(seed=8)[0].other.weight)
    assert network.first.weight is network.last.weight
    assert network.table.tolist() == [0, 1, 2, 3, 4]


def test_a_part_is_cut_from_the_tensor_as_it_is_drawn_whole():
    box = Box((6, 6), (2, 0), (3, 6))
    part = nn.Parameter(torch.empty(3, 6))
    network, _ = drawn(
        held=lambda net: {"model/other.weight": Held(net.other.weight, Part(part, box), (0,), ("shard",))}
    )
    assert torch.equal(part, drawn()[0].other.weight[2:5])
    assert torch.equal(network.first.weight, drawn()[0].first.weight)


def test_where_a_commit_has_the_weights_only_buffers_are_filled():
    with torch.device("meta"):
        network = Filled()
    to_empty(network, torch.device("cpu"))
    with torch.no_grad():
        network.other.weight.fill_(3.0)
    fill_buffers({"model": network}, 7)
    assert network.table.tolist() == [0, 1, 2, 3, 4]
    assert set(network.other.weight.flatten().tolist()) == {3.0}


def test_a_network_that_cannot_fill_itself_is_told():
    with pytest.raises(Failure, match="Linear has no fill") as caught:
        require_fills("model", nn.Linear(1, 1))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
