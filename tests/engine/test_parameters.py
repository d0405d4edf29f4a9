"""bf16 weights: what moves, what is rounded, and that no mesh changes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import prod

import pytest
import torch

from drivetrain.launch.job import Job
from drivetrain.launch.preparation import CUTTING
from drivetrain.launch.supervisor import supervise
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from ranks_mesh import Case, engine_of, train

pytestmark = [pytest.mark.xdist_group("meshes"), pytest.mark.timeout(400)]

KEPT = {
    "masters": {"dtype": "bf16"},
    "masters, by chance": {"dtype": "bf16", "rounding": "stochastic"},
    "none, by chance": {"dtype": "bf16", "master": "none", "rounding": "stochastic"},
}
CASES = {name: Case(parameters=kept) for name, kept in KEPT.items()}
CASES["averages"] = Case(parameters=KEPT["masters"], average=True, steps=4)
CASES["averages of weights"] = Case(parameters=KEPT["none, by chance"], average=True, steps=4)
CASES["ragged"] = Case(parameters=KEPT["none, by chance"], ragged=True, steps=4)
CASES["poisoned"] = Case(parameters=KEPT["none, by chance"], poisoned=3, steps=5)


@pytest.fixture(scope="module")
def one():
    """What one process comes to."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {name: vars(train(engine_of(Mesh(Group()), case), case)) for name, case in CASES.items()}
    torch.set_num_threads(threads)


def started(folder, worker, sizes, *told):
    """What each rank of a mesh says."""
    job = Job(folder=str(folder), recipe={}, origins={}, processes=prod(sizes.values()), overrides=[sizes, *told])
    outcome = supervise(job, worker=f"ranks_mesh:{worker}", preload=("torch", CUTTING))
    assert outcome.code == 0, outcome
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(job.processes)]


def off(found, wanted):
    """The largest relative difference."""
    return max((abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True) if b == b), default=0.0)


def apart(found, wanted):
    """The largest relative distance of tensors."""
    assert found.keys() == wanted.keys()
    distances = []
    for name, numbers in wanted.items():
        one, other = torch.tensor(found[name]).double(), torch.tensor(numbers).double()
        distances.append(float((one - other).norm() / other.norm()))
    return max(distances)


@pytest.mark.parametrize(
    "sizes",
    [{"replicate": 2}, {"shard": 2}, {"replicate": 2, "shard": 2}, {"tensor": 2}, {"shard": 2, "tensor": 2}],
    ids=str,
)
def test_a_mesh_comes_to_what_one_process_does(sizes, one, tmp_path, importable):
    ranks = started(tmp_path, "tables", sizes, [asdict(case) for case in CASES.values()])
    assert all(rank == ranks[0] for rank in ranks), "all ranks have heard the same"
    for name, told in zip(CASES, ranks[0], strict=True):
        wanted = one[name]
        print(
            sizes,
            name,
            off(told["losses"], wanted["losses"]),
            off(told["norms"], wanted["norms"]),
            apart(told["gradients"], wanted["gradients"]),
            apart(told["weights"], wanted["weights"]),
        )
        assert told["whys"] == wanted["whys"], name
