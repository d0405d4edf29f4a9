"""bf16 weights: what moves, what is rounded, and that no mesh changes it."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from drivetrain.checkpoint.commit import load
from drivetrain.checkpoint.commits import names
from drivetrain.checkpoint.manifest import FOLDER
from drivetrain.engine.engine import Engine
from drivetrain.engine.execution import Execution
from drivetrain.engine.narrow import masters_of, narrow
from drivetrain.engine.placement import replicas
from drivetrain.engine.recipe import Parameters
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import SGD, Adagrad, Adam, AdamW, Constant, RMSprop
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from engine.test_meshes import apart, off, started
from engines import micros, minimize
from ranks_mesh import Case, engine_of, train

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

KEPT = {
    "masters": {"dtype": "bf16"},
    "masters, by chance": {"dtype": "bf16", "rounding": "stochastic"},
    "none, by chance": {"dtype": "bf16", "master": "none", "rounding": "stochastic"},
}
CASES = {
    "masters": Case(parameters=KEPT["masters"], average=True, steps=4),
    "masters, by chance": Case(parameters=KEPT["masters, by chance"], dropout=0.2, tied=False, steps=5),
    "none, by chance": Case(parameters=KEPT["none, by chance"], average=True, steps=8),
    "ragged": Case(parameters=KEPT["none, by chance"], ragged=True, steps=3),
    "poisoned": Case(parameters=KEPT["none, by chance"], poisoned=3, steps=4),
}
WHOLE_LAYERS = 1e-6, 1e-5, 1e-6, 1e-3
"""How far losses, norms, gradients and weights may be from one process's. Sums over ranks in bf16 would be 2e-3 off."""
SPLIT_LAYERS = 2e-3, 5e-2, 3e-2, 1e-1
"""Where layers are split, activations are sums of parts that were bf16 already."""
DATA = [{"replicate": 2}, {"shard": 2}, {"replicate": 2, "shard": 2}]
SPLIT = [{"tensor": 2}]
SOME = ("masters, by chance", "none, by chance")
"""What `make test` has of the cases where replicas or layers are tried; `make drill-meshes` has all."""


def cases_of(sizes: dict) -> dict[str, Case]:
    if sizes.get("shard") or "DRILL" in os.environ:
        return CASES
    return {name: CASES[name] for name in SOME}


@pytest.fixture(scope="module")
def one():
    """What one process comes to."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {name: vars(train(engine_of(Mesh(Group()), case), case)) for name, case in CASES.items()}
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sizes", [*DATA, *SPLIT], ids=str)
def test_a_mesh_comes_to_what_one_process_does(sizes, one, tmp_path, importable):
    """Gradients that were rounded to bf16 on the way would be 4e-3 apart, or less for one number of many."""
    cases = cases_of(sizes)
    ranks = started(tmp_path, "tables", sizes, [asdict(case) for case in cases.values()])
    assert all(rank == ranks[0] for rank in ranks), "all ranks have heard the same"
    for name, told in zip(cases, ranks[0], strict=True):
        wanted = one[name]
        losses, norms, gradients, weights = SPLIT_LAYERS if "tensor" in sizes else WHOLE_LAYERS
        assert off(told["losses"], wanted["losses"]) < losses, name
        assert off(told["norms"], wanted["norms"]) < norms, name
        assert max(apart(told["gradients"], wanted["gradients"]).values()) < gradients, name
        assert max(apart(told["weights"], wanted["weights"]).values()) < weights, name
        assert told["whys"] == wanted["whys"], name


def test_a_mesh_that_is_resumed_has_the_same_bits(tmp_path, importable):
    cases = {name: Case(parameters=kept, steps=3) for name, kept in KEPT.items()}
    place = tmp_path / "said"
    place.mkdir()
    runs = tmp_path / "runs"
    told = started(place, "moved", {"shard": 2}, {name: asdict(case) for name, case in cases.items()}, str(runs))
    for name in cases:
        assert told[0][name]["resumed"], name
        straight, cut = (newest_of(runs / name / each) for each in ("straight", "cut"))
        assert straight.keys() == cut.keys()
        assert all(torch.equal(straight[each], cut[each]) for each in straight), name


def test_any_mesh_loads_the_masters_of_any_other(tmp_path, importable):
    cases = {name: asdict(Case(parameters=kept)) for name, kept in KEPT.items()}
    for place, sizes in enumerate([{"shard": 2}, {"tensor": 2}, {"shard": 2, "tensor": 2}, {}]):
        (tmp_path / str(place)).mkdir()
        started(tmp_path / str(place), "pass_on", sizes, cases, str(tmp_path / "runs"))
    for name in cases:
        run = tmp_path / "runs" / name
        first, *others = [load(run / FOLDER / each)[1].tensors for each in reversed(names(run))]
        assert len(others) == 3
        assert any(each.startswith("masters/") for each in first) == (name != "none, by chance")
        for other in others:
            assert first.keys() == other.keys()
            assert all(torch.equal(first[each], other[each]) for each in first), name


def newest_of(run):
    return load(run / FOLDER / names(run)[0])[1].tensors


@pytest.mark.parametrize(
    ("kept", "learns"),
    [*((kept, True) for kept in KEPT.values()), ({"dtype": "bf16", "master": "none"}, False)],
    ids=str,
)
def test_steps_below_the_last_digit_add_up_unless_they_are_rounded_away(kept, learns):
    """Each step is 1e-4 of a weight, and bf16 has 4e-3."""
    network = nn.Linear(64, 64, bias=False)
    nn.init.constant_(network.weight, 1.0)
    engine = engine_for(network, kept, SGD(lr=1e-4, clip=None))
    for step in range(1, 101):
        minimize(engine, lambda nets, batch: nets["model"].weight.sum(), micros(1), step=step)
    moved = 1.0 - float(network.weight.float().mean())
    assert moved == pytest.approx(1e-2, rel=0.5) if learns else moved == 0


@pytest.mark.parametrize("kind", [Adagrad, Adam, AdamW, RMSprop, SGD], ids=lambda kind: kind.__name__)
def test_each_optimizer_moves_masters_as_it_moves_fp32_weights(kind):
    """The gradient is 1 whatever the weights are; what has no masters is rounded at each step, and so near to them."""
    moved = {}
    for name, kept in ({"fp32": None} | KEPT).items():
        network = nn.Linear(16, 8, bias=False)
        nn.init.constant_(network.weight, 1.0)
        engine = engine_for(network, kept, kind(lr=0.05, clip=None))
        for step in range(1, 4):
            minimize(engine, lambda nets, batch: nets["model"].weight.sum(), micros(1), step=step)
        optimizer = engine.network_optimizers["model"]
        moved[name] = optimizer.lasting[0].detach().float().clone()
        state = optimizer.optimizer.state[optimizer.parameters[0]].values()
        assert all(tensor.dtype == torch.float32 for tensor in state if tensor.ndim)
    assert torch.equal(moved["masters"], moved["fp32"])
    assert torch.equal(moved["masters, by chance"], moved["fp32"])
    assert torch.allclose(moved["none, by chance"], moved["fp32"], atol=3 * 2**-8)
    assert not torch.equal(moved["fp32"], torch.ones(8, 16))


def test_what_a_step_does_not_reach_stands_still_and_chunks_change_nothing(monkeypatch):
    found = []
    for limit in (1, 1 << 30):
        monkeypatch.setattr("drivetrain.optim.masters.CHUNK_BYTES", limit)
        torch.manual_seed(0)
        engine = engine_for(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), KEPT["none, by chance"], AdamW(lr=0.1))
        for step in (1, 2):
            minimize(engine, lambda nets, batch: nets["model"][0](batch).square().mean(), micros(2, 2), step=step)
        found.append({name: tensor.clone() for name, tensor in engine.networks["model"].state_dict().items()})
        held = engine.network_optimizers["model"].parameters
        assert all(moved.untyped_storage().nbytes() == 4 for moved in held), "no copy lasts"
        assert all(tensor.grad is None for tensor in held)
    torch.manual_seed(0)
    fresh = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert torch.equal(found[0]["1.weight"], fresh[1].weight.detach().bfloat16())
    assert not torch.equal(found[0]["0.weight"], fresh[0].weight.detach().bfloat16())


def engine_for(network, kept, optimizer):
    """One process, with the network as the only one; fp32 where nothing is said of how it is kept."""
    if kept is None:
        horizon = Horizon(8000, Scale(Batches(8)))
        built = build_network_optimizers({"model": network}, optimizer, Constant(), horizon)
        built["model"].advance(8)
        return Engine({"model": network}, built, Execution(replicas(Group()), torch.device("cpu"), "fp32", 7))
    narrow(network)
    networks = {"model": network}
    settings = TypeAdapter(Parameters).validate_python(kept)
    lasting, stochastic = settings.master == "fp32", settings.rounding == "stochastic"
    placement = replicas(Group())
    placement = replace(placement, masters=masters_of(networks, placement, 7, lasting=lasting, stochastic=stochastic))
    horizon = Horizon(8000, Scale(Batches(8)))
    built = build_network_optimizers(networks, optimizer, Constant(), horizon, parts=placement.parts)
    built = {name: replace(each, masters=placement.masters) for name, each in built.items()}
    built["model"].advance(8)
    return Engine(networks, built, Execution(placement, torch.device("cpu"), "bf16", 7))
