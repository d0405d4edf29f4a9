"""Positions of samples shared out along `context`, against one process: gradients and norms by name, as an optimizer
like Adam hides their scale."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sliced
from drivetrain.engine.context import Positions
from drivetrain.engine.layout import lay_out
from drivetrain.engine.parallel_plan import ParallelPlan
from drivetrain.plan.stand_in import stand_in
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Failure
from drivetrain.spec.mesh import MeshSizes
from mesh_tables import require_near, resumed, started
from ranks_mesh import Case, engine_of, train

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

MESHES = [
    {"context": 2},
    {"context": 2, "shard": 2},
    {"context": 2, "tensor": 2},
    {"context": 2, "pipeline": 2},
    {"context": 4},
    {"context": 2, "replicate": 2},
]
SAMPLE = MESHES if "DRILL" in os.environ else MESHES[:4]
"""What `make test` has; `make drill-meshes` has all."""
CASES = {
    "tied, dropout": Case(depth=4, dropout=0.2, average=True),
    # Adam makes much of gradients that are almost nothing, as here: in float32 weights would be 6e-5 apart.
    "one document": Case(depth=4, documents=False, dtype="float64", dropout=0.2, steps=3),
    "untied": Case(depth=4, tied=False, steps=4),
    "double": Case(depth=4, dtype="float64", clip=0.1, steps=4),
    "ragged": Case(depth=4, ragged=True, steps=4),
    "poisoned": Case(depth=4, poisoned=3, steps=5),
    "poisoned in one part": Case(depth=4, poisoned=3, in_last_row=True, tied=False, steps=4),
    "fp16": Case(depth=4, precision="fp16", average=True, steps=7),
    "bf16": Case(depth=4, precision="bf16", steps=3),
    "recompute": Case(depth=4, dropout=0.2, activations="recompute", steps=3),
    "selective": Case(depth=4, dropout=0.2, activations="selective", steps=3),
    "unequal counts": Case(depth=4, uneven=True, steps=4),
    "bf16 weights": Case(depth=4, parameters={"dtype": "bf16"}, steps=3),
    "four heads": Case(depth=4, kv_heads=4, steps=3),
    # Chunks end elsewhere than what a rank has of a sample.
    "logits in chunks": Case(depth=4, chunk=3, uneven=True, steps=3),
    "gradients in parts": Case(depth=4, in_parts=True, steps=3),
}
NEAR, DOUBLE = (4e-7, 1e-4, 5e-7, 5e-5), (4e-7, 1e-5, 5e-7, 2e-5)
"""How far losses, norms, the first gradients and weights may be off; the loss is computed in float32 in any case."""
HALF = (2e-4, 4e-3, 1.5e-2, 1e-1)
"""The same where numbers are rounded to 16 bits: sums of these are made of other parts, along each axis."""


def cases_of(sizes: dict) -> dict[str, Case]:
    """`make test` has some."""
    if "pipeline" in sizes and "DRILL" in os.environ:  # stages take no loss but the task's own
        return {name: case for name, case in CASES.items() if not case.in_last_row}
    if "DRILL" in os.environ or sizes == MESHES[0]:
        return CASES
    return {name: replace(CASES[name], steps=4) for name in ("tied, dropout", "ragged")}


@pytest.fixture(scope="module")
def one():
    """What one process comes to in a case."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield cache(lambda name, steps: vars(train(engine_of(Mesh(Group()), CASES[name]), CASES[name], last=steps)))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sizes", SAMPLE, ids=str)
def test_parts_of_samples_come_to_what_one_process_does(sizes, one, tmp_path, importable):
    cases = cases_of(sizes)
    ranks = started(tmp_path, "tables", sizes, [asdict(case) for case in cases.values()])
    assert all(rank == ranks[0] for rank in ranks), "all ranks have heard the same"
    for (name, case), told in zip(cases.items(), ranks[0], strict=True):
        near = DOUBLE if case.dtype == "float64" else NEAR
        require_near(name, told, one(name, case.steps), HALF if "16" in name else near)
        if "poisoned" in name:
            assert told["whys"][:4] == ["", "", "not finite", ""]
            # Step 3, third lane: whoever has some of its positions says so, and nobody else.
            assert {tuple(ids) for rank in told["guilty"] for ids in rank} == {(28, 29)}
        if name == "fp16":
            assert told["whys"].count("overflow") == 3


@pytest.mark.parametrize("sizes", SAMPLE if SAMPLE == MESHES else SAMPLE[1:2], ids=str)
def test_parts_of_samples_that_are_resumed_have_the_same_bits_and_unpickle_nothing(sizes, tmp_path, importable):
    """Where fp16 moves the loss scale, averages are kept and activations are computed again, too."""
    case = Case(depth=2, dropout=0.2, precision="fp16", average=True, evaluated=False, activations="recompute", steps=5)
    resumed(tmp_path, sizes, asdict(case))


@given(st.integers(1, 6), st.integers(1, 5))
def test_each_position_is_on_one_rank_and_all_have_as_much_to_compute(ranks, half):
    length, work = 2 * half * ranks, set()
    x, there = torch.randn(2, 3, length, 4), []
    for index in range(ranks):
        positions = Positions(index, ranks, sliced={"x": 2})
        with positions.given():
            here, seen = positions.here(2 * half), positions.causal(2 * half)
            masks = positions.masks(seen, torch.float32)
            assert torch.equal(positions.cut({"x": x})["x"], x[:, :, here])
            if ranks > 1:
                work.add(sum(mask.numel() for mask in masks))
                # Nothing that is seen is cut off.
                assert sum(int((mask == 0).sum()) for mask in masks) == int(seen.sum())
        assert torch.equal(seen, torch.ones(length, length).tril().bool()[here])
        there.append(here)
    assert torch.equal(torch.cat(there).sort().values, torch.arange(length))
    assert len(work) == (ranks > 1)
    gathered = torch.cat([x[:, :, here] for here in there])
    assert torch.equal(Positions(0, ranks)._in_order(gathered, 2), x) or ranks == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("local", "model.blocks.0 has no attribute `positions`, so that it sees those here alone"),
        ("torch", "model.blocks.1.dropout is torch's Dropout, which draws the same for other positions"),
        ("unnamed", "nothing says in which modules of model positions meet"),
        ("strange", "no module is called 'layers.*'"),
    ],
)
def test_a_network_whose_positions_would_not_meet_is_refused(change, told):
    network = sliced.Net(sliced.Local if change == "local" else sliced.Attention)
    if change == "torch":
        network.blocks[1].dropout = nn.Dropout(0.1)
    context = {"unnamed": (), "strange": ("layers.*",)}.get(change, ("blocks.*",))
    plan = ParallelPlan(units=("blocks.*",), context=context, sliced={"tokens": 1})
    with stand_in(1, 2) as group, pytest.raises(Failure) as caught:
        lay_out("model", network, plan, Mesh(group, MeshSizes(context=2)))
    assert told in caught.value.outcome.cause
