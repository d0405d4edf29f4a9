"""Every mesh against one process: gradients and norms by name, for an optimizer like Adam hides their scale."""

from __future__ import annotations

import os
from dataclasses import asdict
from math import prod

import pytest
import torch

from drivetrain.checkpoint.commit import load
from drivetrain.checkpoint.commits import names
from drivetrain.checkpoint.manifest import FOLDER
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from mesh_tables import apart, off, require_near, resumed, started
from ranks_mesh import CONTEXT, VOCABULARY, Case, adversaries_of, contest, engine_of, train

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

MESHES = [
    {"shard": 2},
    {"tensor": 2},
    {"shard": 4},
    {"replicate": 2, "shard": 2},
    {"shard": 2, "tensor": 2},
    {"replicate": 2, "tensor": 2},
    {"tensor": 4},
]
RESUMED = MESHES if "DRILL" in os.environ else [{"shard": 2}, {"tensor": 2}, {"shard": 2, "tensor": 2}]
EXPERTS = {"count": 6, "hidden": 32, "shared": 1, "dense": 1, "capacity": 1.5, "balance": {"rate": 0.01, "loss": 0.3}}
CASES = {
    "tied": Case(),
    "untied, dropout": Case(tied=False, dropout=0.2, steps=6),
    "double": Case(dtype="float64", clip=0.1, steps=4),
    "averages": Case(average=True, steps=4),
    "not evaluated": Case(average=True, evaluated=False, steps=4),
    "ragged": Case(ragged=True, steps=4),
    "poisoned": Case(poisoned=3, steps=5),
    "poisoned in one part": Case(poisoned=3, in_last_row=True, tied=False, steps=4),
    "fp16": Case(precision="fp16", average=True, steps=7),
    "bf16": Case(precision="bf16", steps=3),
    "logits in chunks": Case(chunk=3, dropout=0.2, steps=3),
    "experts": Case(experts=EXPERTS, dropout=0.2, steps=4),
    "sums in parts": Case(in_parts=True, average=True, ragged=True, steps=4),
}
if "DRILL" in os.environ:
    CASES["compiled"] = Case(compiled=True, steps=3)
SOME = {"short": Case(steps=6)} | {name: CASES[name] for name in ("ragged", "poisoned", "poisoned in one part")}
SOME |= {name: CASES[name] for name in ("logits in chunks", "experts", "sums in parts")}
"""What `make test` has on all meshes but those of two, on which each axis is tried alone; `make drill-meshes` has all
cases."""
APART = ("double", "averages", "not evaluated")
"""Where layers are split `make test` leaves these out: what they are about lies outside of the split layers."""


WHOLE_POSITIONS = {"whole positions": Case(sequence=False, dropout=0.2, steps=3)}
WHOLE_POSITIONS["logits of whole positions in chunks"] = Case(sequence=False, chunk=7, tied=False, steps=2)
"""Where layers are split."""
FOUR_HEADS = {"four heads": Case(kv_heads=4, dropout=0.2, steps=3)}
"""Where four ranks share the heads."""
NEAR, DOUBLE = (1e-5, 2e-4, 2e-6, 1e-3), (1e-5, 1e-5, 5e-7, 1e-5)
"""How far losses, norms, the first gradients and weights may be off."""
SPLIT_HALF = {"fp16": (1e-4, 1e-3, 2e-3, 5e-2), "bf16": (2e-4, 2e-3, 1e-2, 1e-1)}
"""The same where layers are split: each rank rounds its part of a sum. Weights move by as much for a small gradient as
for a large one."""


ALL = CASES | SOME | WHOLE_POSITIONS | FOUR_HEADS


def cases_of(sizes: dict) -> dict[str, Case]:
    if sizes.get("tensor") == 4:
        return FOUR_HEADS
    cases = CASES if prod(sizes.values()) == 2 or "DRILL" in os.environ else SOME
    if "tensor" not in sizes:
        return cases
    kept = {name: case for name, case in cases.items() if "DRILL" in os.environ or name not in APART}
    return kept | WHOLE_POSITIONS


@pytest.fixture(scope="module")
def one():
    """What one process comes to."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {name: vars(train(engine_of(Mesh(Group()), case), case)) for name, case in ALL.items()}
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_a_mesh_comes_to_what_one_process_does(sizes, one, tmp_path, importable):
    cases = cases_of(sizes)
    ranks = started(tmp_path, "tables", sizes, [asdict(case) for case in cases.values()])
    assert all(rank == ranks[0] for rank in ranks), "all ranks have heard the same"
    found = dict(zip(cases, ranks[0], strict=True))
    for name, told in found.items():
        near = DOUBLE if name == "double" else NEAR
        require_near(name, told, one[name], SPLIT_HALF.get(name, near) if "tensor" in sizes else near)
    for name in found.keys() & {"poisoned", "poisoned in one part"}:
        assert found[name]["whys"][:4] == ["", "", "not finite", ""]
        # Step 3, third lane: whoever has read it says so, and nobody else.
        assert {tuple(ids) for rank in found[name]["guilty"] for ids in rank} == {(28, 29)}
    if "poisoned" in found:
        assert sum(map(bool, found["poisoned"]["guilty"])) == sizes.get("tensor", 1)
    if "averages" in found:
        averaged, plain = found["averages"]["scores"][-1]
        assert off([averaged], [plain]) > 1e-4, "averages are not the weights"
        for what in ("losses", "norms", "weights", "averages"):
            assert found["averages"][what] == found["not evaluated"][what], "training does not notice evaluations"
    if "fp16" in found:
        assert found["fp16"]["whys"].count("overflow") == 3


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"replicate": 2, "shard": 2}], ids=str)
def test_networks_that_train_against_each_other_come_to_what_one_process_does(sizes, tmp_path, importable):
    """Two to one, without a plan of their own, with a part that does not train, and a layer that a loss reaches on one
    rank only."""
    wanted = vars(contest(adversaries_of(Mesh(Group())), 4))
    ranks = started(tmp_path, "adversaries", sizes, 4)
    assert all(rank == ranks[0] for rank in ranks)
    assert off(ranks[0]["losses"], wanted["losses"]) < 1e-5
    assert off(ranks[0]["norms"], wanted["norms"]) < 2e-4
    assert max(apart(ranks[0]["weights"], wanted["weights"]).values()) < 1e-3


@pytest.mark.parametrize("sizes", RESUMED, ids=str)
def test_a_run_that_is_resumed_on_its_mesh_has_the_same_bits(sizes, tmp_path, importable):
    """Where fp16 moves the loss scale and averages are kept, too."""
    case = Case(
        dropout=0.2, precision="fp16", average=True, evaluated=False, kv_heads=max(2, sizes.get("tensor", 1)), steps=5
    )
    resumed(tmp_path, sizes, asdict(case))


def test_any_mesh_loads_the_commits_of_any_other_to_the_bit(tmp_path, importable):
    """Weights, moments, averages and the loss scale, through every kind of mesh and back, without a step in between."""
    case, run = asdict(Case(tied=False, average=True, evaluated=False, precision="fp16")), tmp_path / "run"
    run.mkdir()
    chain = [{}, {"shard": 2}, {"pipeline": 2}, {"tensor": 2}, {"shard": 4}, {"pipeline": 2, "shard": 2}]
    chain += [{"replicate": 2, "shard": 2}, {"shard": 2, "tensor": 2}, {"pipeline": 2, "tensor": 2}]
    chain += [{"context": 2, "shard": 2}, {"context": 2, "tensor": 2}, {"context": 2, "pipeline": 2}, {}]
    steps = 4  # of which two overflow
    for place, sizes in enumerate(chain):
        folder = tmp_path / str(place)
        folder.mkdir()
        started(folder, "go_on", sizes, case, str(run), steps if place == 0 else 0)
    first, *others = [load(run / FOLDER / name)[1].tensors for name in reversed(names(run))]
    assert len(others) == len(chain) - 1
    assert any("exp_avg" in name for name in first)
    assert any(name.startswith("averages/") for name in first)
    assert first["scaler/scale"] == 2.0**20
    for tensors in others:
        assert tensors.keys() == first.keys()
        assert all(torch.equal(tensors[name], first[name]) for name in first)


@pytest.mark.parametrize(
    ("sizes", "in_parts"), [({"shard": 2}, False), ({"shard": 2}, True), ({"shard": 2, "tensor": 2}, False)], ids=str
)
def test_a_step_of_many_micro_batches_sums_gradients_once_and_gathers_no_logits(sizes, in_parts, tmp_path, importable):
    """Or in each of them, where that is asked for."""
    for told in started(tmp_path, "messages", sizes, asdict(Case(in_parts=in_parts))):
        assert told["micros"] == 4
        names = [name for name, _ in told["seen"]]
        times = 4 if in_parts else 1
        assert names.count("c10d::_reduce_scatter_base_") == 3 * times, "one for each layer, and one for the rest"
        assert names.count("c10d::allreduce_") == 1
        gathered = [size for name, size in told["seen"] if name == "_c10d_functional::all_gather_into_tensor"]
        assert bool(gathered) == ("tensor" in sizes)
        assert max(gathered, default=0) < CONTEXT * VOCABULARY, "those of one sample"
