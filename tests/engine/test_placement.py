"""What each rank holds, counts and wants, by the names of commits."""

import pytest
import torch
from torch import nn

from drivetrain.engine.placement import Held, Placement, placed, replicas
from drivetrain.optim.parts import Part
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import MeshSizes


def cut(rank: int) -> Placement:
    """The second of two shards where `rank` is 1: its half of a matrix, and a norm that both hold."""
    mesh = Mesh.__new__(Mesh)
    mesh.group, mesh.sizes = Group(rank, 2), MeshSizes(shard=2)
    mesh.at, mesh.replicated, mesh._sharing = mesh.sizes.place(rank), False, {}
    half, norm = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))
    held = {
        "model/weight": Held(half, Part(half, Box((4, 3), (2 * rank, 0), (2, 3))), (rank,), ("shard",)),
        "model/norm": Held(norm, Part.of_whole(norm), (0, 1), ()),
    }
    return Placement(mesh, held)


TENSORS = {
    "networks/model/weight": torch.ones(2, 3),
    "networks/model/norm": torch.ones(3),
    "optimizers/model/weight/exp_avg": torch.ones(2, 3),
    "optimizers/model/weight/step": torch.tensor(1.0),
    "averages/model/weight": torch.ones(2, 3),
    "scaler/scale": torch.tensor(1.0),
}


@pytest.mark.parametrize("rank", [0, 1])
def test_of_equal_parts_one_rank_writes_and_cut_ones_say_where_they_lie(rank):
    counted = cut(rank).counted(TENSORS)
    parts = {"networks/model/weight", "optimizers/model/weight/exp_avg", "averages/model/weight"}
    assert set(counted) == (parts if rank else set(TENSORS))
    assert cut(rank).boxes(counted) == dict.fromkeys(parts, Box((4, 3), (2 * rank, 0), (2, 3)))


def test_what_a_rank_wants_of_a_commit_is_its_part():
    placement = cut(1)
    part = Box((4, 3), (2, 0), (2, 3))
    assert placement.box("networks/model/weight", (4, 3)) == part
    assert placement.box("optimizers/model/weight/exp_avg_sq", (4, 3)) == part
    assert placement.box("optimizers/model/weight/step", ()) == Box.of_whole(())
    assert placement.box("scaler/scale", ()) == Box.of_whole(())


def test_a_part_that_is_no_longer_the_networks_memory_is_never_committed():
    placement = cut(1)
    held = placement.held["model/weight"]
    elsewhere = Part(nn.Parameter(torch.ones(2, 3)), held.box)
    moved = Held(held.parameter, elsewhere, held.holders, held.along)
    broken = Placement(placement.mesh, {**placement.held, "model/weight": moved})
    with pytest.raises(Failure, match="model/weight has moved in memory") as caught:
        broken.counted(TENSORS)
    assert caught.value.outcome.code == Exit.INTERNAL


def test_whole_tensors_are_the_first_ranks_to_commit():
    leader, other = replicas(Group(0, 2)), replicas(Group(1, 2))
    assert leader.counted(TENSORS) == TENSORS
    assert other.counted(TENSORS) == {}
    assert leader.boxes(TENSORS) == {}
    assert leader.data.world == 2
    assert leader.replicated
    assert other.speaks
    assert leader.holders("networks/model/weight", TENSORS["networks/model/weight"]) == (0, 1)
    assert placed({"model": nn.Linear(2, 2)}, leader.mesh).held == {}
