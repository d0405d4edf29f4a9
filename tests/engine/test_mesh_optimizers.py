"""Each optimizer on the memory of shards, against one process."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest
import torch

from conftest import run_under_supervisor, tensors
from drivetrain.checkpoint.commit import load
from drivetrain.checkpoint.commits import names
from drivetrain.checkpoint.manifest import FOLDER
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit
from engine.test_meshes import started
from ranks_mesh import Case, engine_of, network, train

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

CASE = Case(steps=4, tied=False)
GALORE = {"kind": "galore", "lr": 1e-2, "rank": 8, "gap": 2, "weight_decay": 0.1}
ANY = {
    "adam": {"kind": "adam", "lr": 3e-3, "amsgrad": True},
    "sgd": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "adagrad": {"kind": "adagrad", "lr": 3e-3, "initial": 0.1},
    "rmsprop": {"kind": "rmsprop", "lr": 3e-4, "momentum": 0.5, "centered": True},
    "muon": {"kind": "muon", "lr": 3e-3, "adamw_lr": 1e-3},
}
ROWS = {
    "galore": GALORE,
    "galore left": GALORE | {"projection": "left", "base": {"kind": "sgd", "momentum": 0.9}},
    "galore full": GALORE | {"projection": "full", "moments": "rotate", "refresh": "exact"},
    "galore of all directions": GALORE | {"rank": 32, "base": {"kind": "sgd", "momentum": 0.9}},
    "apollo": GALORE | {"refresh": "random", "update": "scaled"},
}
BLOCKS = {"galore in 8 bits": GALORE | {"rank": 32, "base": {"kind": "adamw8bit"}}}
if find_spec("torchao"):
    BLOCKS["torchao in 8 bits"] = {"kind": "torchao_adamw8bit", "lr": 3e-3, "compiled": False}
    BLOCKS["torchao in 4 bits"] = {"kind": "torchao_adamw4bit", "lr": 3e-3, "compiled": False}
if find_spec("bitsandbytes"):
    BLOCKS["bitsandbytes"] = {"kind": "bitsandbytes_adamw8bit", "lr": 3e-3}
MESHES = {
    "shard 2": ({"shard": 2}, ANY | ROWS | BLOCKS),
    "tensor 2": ({"tensor": 2}, ANY),
    "replicate 2 x shard 2": ({"replicate": 2, "shard": 2}, ANY | ROWS | BLOCKS),
    "shard 2 x tensor 2": ({"shard": 2, "tensor": 2}, ANY),
}
SUMS = {
    "galore": 1e-6,
    "galore of all directions": 1e-6,
    "galore left": 1e-6,
    "galore full": 1e-3,
    "apollo": 1e-6,
    "galore in 8 bits": 1e-6,
}
"""What sums over ranks in its step, so that it may round otherwise; all others come to the same bits."""
OTHERS = {
    "galore of all directions": 1e-2,
    "muon": 0.2,
    "galore full": 1e-2,
    "galore in 8 bits": 1e-2,
    "torchao in 8 bits": 1e-2,
    "bitsandbytes": 1e-2,
}
"""What makes more of a gradient's last bits than 1e-3: Muon orthogonalises in bfloat16, others quantize."""
TRIED = (
    "sgd",
    "muon",
    "galore",
    "galore left",
    "galore of all directions",
    "galore in 8 bits",
    "torchao in 8 bits",
    "torchao in 4 bits",
)
"""In whole steps, with commits: one of each kind of state."""
if "DRILL" not in os.environ:
    # `make drill-meshes` tries all, and `make test` moves parts of every one by given gradients.
    TRIED = ("sgd", "muon", "galore left", "torchao in 8 bits")


def cases(optimizers: dict, tried=None) -> dict[str, Case]:
    chosen = {name: optimizer for name, optimizer in optimizers.items() if tried is None or name in tried}
    return {name: replace(CASE, optimizer=each, wide=name in BLOCKS) for name, each in chosen.items()}


def told(chosen: dict[str, Case]) -> dict:
    return {name: asdict(case) for name, case in chosen.items()}


@pytest.fixture(scope="module")
def one():
    """What one process comes to."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    chosen = cases(ANY | ROWS | BLOCKS, TRIED)
    yield {name: train(engine_of(Mesh(Group()), case), case) for name, case in chosen.items()}
    torch.set_num_threads(threads)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_same_gradients_move_parts_as_they_move_whole_tensors(mesh, tmp_path, importable):
    sizes, optimizers = MESHES[mesh]
    chosen = cases(optimizers, None if len(sizes) == 1 else TRIED)
    for distances in started(tmp_path, "given_gradients", sizes, told(chosen)):
        for name, distance in distances.items():
            assert distance <= SUMS.get(name, 0.0), name


@pytest.mark.parametrize("mesh", MESHES)
def test_steps_come_to_what_one_process_does_and_a_resumed_run_to_the_same_bits(mesh, one, tmp_path, importable):
    sizes, optimizers = MESHES[mesh]
    chosen, runs = cases(optimizers, TRIED), tmp_path / "runs"
    ranks = started(tmp_path, "moved", sizes, told(chosen), str(runs))
    assert all(rank == ranks[0] for rank in ranks)
    for name, case in chosen.items():
        start = dict(network(case).named_parameters())
        for parameter, numbers in one[name].weights.items():
            wanted, found = torch.tensor(numbers), torch.tensor(ranks[0][name]["weights"][parameter])
            far = wanted - start[parameter.removeprefix("networks/model/")].detach()
            assert float((found - wanted).norm() / far.norm()) < OTHERS.get(name, 1e-3), (name, parameter)
        assert ranks[0][name]["resumed"], name
        straight, cut = (newest(runs / name / each) for each in ("straight", "cut"))
        assert straight.keys() == cut.keys()
        assert all(torch.equal(straight[each], cut[each]) for each in straight), name


def newest(run) -> dict[str, torch.Tensor]:
    return load(run / FOLDER / names(run)[0])[1].tensors


@pytest.mark.parametrize(
    ("chain", "optimizers"),
    [
        ([{}, {"shard": 2}, {"replicate": 2, "shard": 2}, {"shard": 2}, {}], ANY | ROWS | BLOCKS),
        ([{"tensor": 2}, {"shard": 2, "tensor": 2}, {"shard": 4}, {}], {"muon": ANY["muon"]}),
        (
            [{"shard": 4}, {}, {"shard": 2}, {"shard": 4}],
            {name: ROWS[name] for name in ("galore", "galore left", "galore of all directions")},
        ),
    ],
    ids=["all", "columns", "uneven rows"],
)
def test_any_mesh_loads_the_state_of_any_other_to_the_bit(chain, optimizers, tmp_path, importable):
    chosen, runs = cases(optimizers, TRIED), tmp_path / "runs"
    for place, sizes in enumerate(chain):
        folder = tmp_path / str(place)
        folder.mkdir()
        started(folder, "pass_on", sizes, told(chosen), str(runs))
    for name in chosen:
        run = runs / name
        first, *others = [load(run / FOLDER / commit)[1].tensors for commit in reversed(names(run))]
        assert len(others) == len(chain) - 1
        for other in others:
            assert other.keys() == first.keys()
            assert all(torch.equal(other[each], first[each]) for each in first), name


def test_what_blocks_do_not_fit_is_refused_by_name_before_it_moves(tmp_path, importable):
    narrow = GALORE | {"rank": 33, "base": {"kind": "adamw8bit"}}
    chosen = {"galore": replace(CASE, optimizer=narrow, wide=True)}
    if "bitsandbytes" in BLOCKS:
        chosen["bitsandbytes"] = replace(CASE, optimizer=BLOCKS["bitsandbytes"], wide=True)
    found = started(tmp_path, "refusals", {"shard": 4}, [asdict(case) for case in chosen.values()])
    assert all(rank == found[0] for rank in found)
    codes = [refused["code"] for refused in found[0]]
    assert codes == [Exit.BAD_RECIPE] * len(chosen)
    assert "4 processes share the rows of layers.0.attention.query.weight, moved as (128, 33)" in found[0][0]["cause"]
    if "bitsandbytes" in BLOCKS:
        assert "4 processes share the rows of embed.weight (64, 128)" in found[0][1]["cause"]


def test_one_of_the_users_own_that_says_so_moves_parts(tiny, tmp_path):
    recipe = tiny | {"optimizer": {"kind": "torch.optim:NAdam", "lr": 1e-3, "elementwise": True}, "evaluate": {}}
    found = []
    for name, overrides in {"one": [], "two": ["launch.processes=2", "parallel.shard=2"]}.items():
        for until in ("3", None):  # commits of the user's own state, which the next attempt loads
            stop = [f"stop.at=[{until}]"] if until else []
            outcome = run_under_supervisor(recipe, tmp_path / name, *overrides, *stop)
        assert outcome.code == Exit.DONE
        found.append(tensors(tmp_path / name))
    one, two = found
    assert one.keys() == two.keys()
    assert any(name.endswith("mu_product") for name in one)
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], atol=1e-4), name
