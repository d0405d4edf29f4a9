"""What a mesh cannot cut is told before it is cut, and what it can is trained as one process trains it."""

import json
import re
from math import prod
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from drivetrain.engine.cuttable import require_apart, require_shardable, require_unwatched
from drivetrain.engine.layout import _require_knobs, lay_out
from drivetrain.engine.narrow import narrow
from drivetrain.engine.parallel_plan import ParallelPlan
from drivetrain.launch.job import Job
from drivetrain.launch.preparation import CUTTING
from drivetrain.launch.supervisor import supervise
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import MeshSizes
from ranks_odd import Classifying, Encoding, PartlySplit, Penalized, PenalizedEncoding, Scaled, odd_engine, odd_steps

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]


def said(folder, kind, sizes, sequence=False):
    job = Job(
        folder=str(folder), recipe={}, origins={}, processes=prod(sizes.values()), overrides=[sizes, kind, sequence]
    )
    outcome = supervise(job, worker="ranks_odd:odd", preload=("torch", CUTTING))
    assert outcome.code == 0, outcome
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(job.processes)]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (Scaled, {"shard": 2}),
        (Scaled, {"replicate": 2, "shard": 2}),  # a single micro-batch for each
        (Penalized, {"shard": 2}),
        (Encoding, {"shard": 2}),
        (PenalizedEncoding, {"shard": 2}),
        (PartlySplit, {"tensor": 2}),
        (PartlySplit, {"shard": 2, "tensor": 2}),
        (Classifying, {"tensor": 2}),
        (Classifying, {"shard": 2, "tensor": 2}),
    ],
)
def test_numbers_few_rows_and_layers_that_nothing_splits_train_as_alone(kind, sizes, tmp_path, importable):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    wanted = odd_steps(odd_engine(Mesh(Group()), kind))
    torch.set_num_threads(threads)
    first, *others = said(tmp_path, kind.__name__, sizes, sequence=kind is Classifying)
    assert all(other == first for other in others)
    for what in ("losses", "norms"):
        assert first[what] == pytest.approx(wanted[what], rel=1e-4)
    assert first["gradients"].keys() == wanted["gradients"].keys()
    for name, gradient in wanted["gradients"].items():
        torch.testing.assert_close(torch.tensor(first["gradients"][name]), torch.tensor(gradient), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "unnamed"), [("PartlySplit", "scale"), ("Dropping", "2")])
def test_a_layer_that_may_see_some_positions_has_to_be_named(kind, unnamed, tmp_path, importable):
    for told in said(tmp_path, kind, {"tensor": 2}, sequence=True):
        assert told["code"] == Exit.BAD_RECIPE
        assert told["cause"] == f"parallel.sequence: the plan's split does not say what becomes of model.{unnamed}"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("Decayed", "parallel: the loss needs parameters after they were given up"),
        ("Parted", "parallel: parameters were used that no call of their network has gathered"),
    ],
)
def test_a_loss_that_goes_around_its_network_is_told(kind, cause, tmp_path, importable):
    for told in said(tmp_path, kind, {"shard": 2}):
        assert told["code"] == Exit.BAD_RECIPE
        assert told["cause"].startswith(cause)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)) for _ in range(2)])


def test_dropout_that_draws_the_same_on_all_parts_is_refused_where_layers_are_split():
    network = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8))
    plan = ParallelPlan(split={"0": "column", "2": "row"})
    with pytest.raises(Failure, match=r"model\.1 is torch's Dropout") as error:
        lay_out("model", network, plan, elsewhere(tensor=2))
    assert error.value.outcome.code is Exit.BAD_RECIPE


def test_a_plan_that_names_a_method_which_is_not_there_is_refused():
    with pytest.raises(Failure, match="its methods name 'encode', which Linear does not have") as error:
        lay_out("model", nn.Linear(2, 2), ParallelPlan(methods=("encode",)), elsewhere(shard=2))
    assert error.value.outcome.code is Exit.BAD_RECIPE


def elsewhere(**sizes: int) -> Mesh:
    """A mesh of other processes, none of which is asked for anything."""
    mesh = Mesh.__new__(Mesh)
    mesh.sizes, mesh.replicated = MeshSizes(**sizes), False
    return mesh


def test_a_torch_without_what_a_mesh_needs_is_told_with_its_version():
    """An older one cannot be installed here: things without the attributes stand for it."""
    with pytest.raises(Failure, match=rf"torch {re.escape(torch.__version__)} has no FSDPModule\.set_") as error:
        _require_knobs(object())
    assert error.value.outcome.code is Exit.BAD_RECIPE
    parameter = Mock(spec=["is_floating_point"])
    old = SimpleNamespace(modules=list, parameters=lambda: [parameter])
    with pytest.raises(Failure, match=rf"torch {re.escape(torch.__version__)} has no Tensor\.grad_dtype") as error:
        narrow(old)
    assert error.value.outcome.code is Exit.BAD_RECIPE


def tied(network):
    network.blocks[1][0].weight = network.blocks[0][0].weight


def tied_to_the_rest(network):
    network.blocks[1][0].weight = network.first.weight


def turned(network):
    network.first.weight = nn.Parameter(torch.randn(2, 2).t())


def empty(network):
    network.first.extra = nn.Parameter(torch.zeros(0, 2))


def mixed(network):
    network.blocks[0][0].bias = nn.Parameter(torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (tied, "blocks.0.0.weight and blocks.1.0.weight of model are one tensor"),
        (tied_to_the_rest, "first.weight and blocks.1.0.weight of model are one tensor"),
        (turned, "model.first.weight does not lie row by row"),
        (empty, r"model.first.extra has shape \[0, 2\]"),
        (mixed, "blocks.0.0.weight is float32 and blocks.0.0.bias is float64: what trains in blocks.0"),
    ],
)
def test_what_has_no_rows_to_share_out_is_refused(spoil, words):
    network = Blocks()
    require_shardable("model", network, ["blocks.0", "blocks.1"])
    spoil(network)
    with pytest.raises(Failure, match=words) as error:
        require_shardable("model", network, ["blocks.0", "blocks.1"])
    assert error.value.outcome.code is Exit.BAD_RECIPE


def test_what_is_one_tensor_within_a_unit_or_a_frozen_type_of_its_own_is_fine():
    network = Blocks()
    tied(network)
    mixed(network)
    network.get_parameter("blocks.0.0.bias").requires_grad_(False)
    network.blocks.append(network.blocks[0])  # a block that is used again
    require_shardable("model", network, [])


def test_a_tensor_that_networks_share_is_refused():
    first, second = Blocks(), Blocks()
    require_apart({"first": first, "second": second})
    second.first.weight = first.first.weight
    with pytest.raises(Failure, match=r"first\.first\.weight and second\.first\.weight are one tensor"):
        require_apart({"first": first, "second": second})


def test_hooks_that_a_cut_tensor_would_lose_are_refused():
    network = Blocks()
    require_unwatched("model", network)
    network.first.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(Failure, match=r"model\.first\.weight has hooks"):
        require_unwatched("model", network)
