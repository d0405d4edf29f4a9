"""Stages of a pipeline against one process, by every schedule: gradients and norms by name, as an optimizer like Adam
hides their scale."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import cache

import pytest
import torch

from drivetrain.engine.pipeline import fitting
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from mesh_tables import off, require_near, resumed, started
from ranks_mesh import Case, engine_of, train

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

MESHES = [
    {"pipeline": 2},
    {"pipeline": 2, "virtual_stages": 2},
    {"pipeline": 2, "tensor": 2},
    {"pipeline": 2, "virtual_stages": 2, "folded": True},
    {"pipeline": 2, "shard": 2},
    {"pipeline": 2, "replicate": 2},
    {"pipeline": 4},
]
SAMPLE = MESHES if "DRILL" in os.environ else MESHES[:4]
"""What `make test` has; `make drill-meshes` has all."""
CASES = {
    # The head is the table of tokens: on the last stage, and on the first one.
    "tied, dropout": Case(depth=4, dropout=0.2, average=True),
    "untied": Case(depth=5, tied=False, steps=4),
    "double": Case(depth=4, dtype="float64", clip=0.1, steps=4),
    "ragged": Case(depth=4, ragged=True, steps=4),
    "poisoned": Case(depth=4, poisoned=3, steps=5),
    "fp16": Case(depth=4, precision="fp16", average=True, steps=7),
    "bf16": Case(depth=4, precision="bf16", steps=3),
    "recompute": Case(depth=4, dropout=0.2, activations="recompute", steps=3),
    "selective": Case(depth=4, dropout=0.2, activations="selective", steps=3),
    "unequal counts": Case(depth=4, uneven=True, steps=4),
    "bf16 weights": Case(depth=4, parameters={"dtype": "bf16"}, steps=3),
    # A micro-batch is short: what is filled in for messages, the loss must not see.
    "logits in chunks": Case(depth=4, chunk=5, uneven=True, steps=3),
}
if "DRILL" in os.environ:
    CASES["compiled"] = Case(depth=4, compiled=True, steps=3)
NEAR, DOUBLE = (4e-7, 1e-4, 5e-7, 5e-5), (4e-7, 1e-5, 5e-7, 1e-5)
"""How far losses, norms, the first gradients and weights may be off; the loss is computed in float32 in any case."""
ROUNDED = (1e-5, 2e-4, 2e-6, 1e-3)
"""The same where numbers are rounded to 16 bits: what is off in the last bit of fp32 may be off by one bit of these."""
HALF = (2e-4, 4e-3, 1e-2, 1e-1)
"""The same where layers are split, too: each rank rounds its part of a sum."""


def schedules_of(sizes: dict) -> list[str]:
    if "folded" in sizes:
        return ["zbv"]
    return ["interleaved", "zero_bubble"] if "virtual_stages" in sizes else ["1f1b", "zero_bubble", "gpipe"]


def cases_of(sizes: dict) -> dict[tuple[str, str], Case]:
    """By the first schedule, and some of them by the others. `make test` has some."""
    first, *others = schedules_of(sizes)
    found, cases = {}, dict(CASES)
    if "DRILL" not in os.environ:
        some = ["tied, dropout", "ragged", "poisoned", "logits in chunks"]
        if sizes == MESHES[0]:
            some += ["double", "fp16", "recompute", "selective", "unequal counts"]
        cases = {name: CASES[name] for name in some}
    if first == "zbv":  # it passes back in two parts: both are refused, as in tests/spec/test_mesh.py
        cases = {name: case for name, case in cases.items() if name not in ("logits in chunks", "compiled")}
    for name, case in cases.items():
        among = [first]
        if sizes.keys() == {"pipeline"} or "virtual_stages" in sizes:
            among += others if name in ("tied, dropout", "recompute", "ragged") else []
        for schedule in among:
            steps = case.steps if schedule == first else min(case.steps, 4)
            found[name, schedule] = replace(case, schedule=schedule, steps=steps)
    return found


@pytest.fixture(scope="module")
def one():
    """What one process comes to in a case."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield cache(lambda name, steps: vars(train(engine_of(Mesh(Group()), CASES[name]), CASES[name], last=steps)))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sizes", SAMPLE, ids=str)
def test_stages_come_to_what_one_process_does_by_every_schedule(sizes, one, tmp_path, importable):
    cases = cases_of(sizes)
    ranks = started(tmp_path, "tables", sizes, [asdict(case) for case in cases.values()])
    assert all(rank == ranks[0] for rank in ranks), "all ranks have heard the same"
    for (name, schedule), told in zip(cases, ranks[0], strict=True):
        near = DOUBLE if name == "double" else NEAR
        if "16" in name:
            near = HALF if "tensor" in sizes else ROUNDED
        wanted = one(name, cases[name, schedule].steps)
        require_near(f"{name}, {schedule}", told, wanted, near)
        if name == "poisoned":
            assert told["whys"][:4] == ["", "", "not finite", ""]
            # Step 3, third lane: the last stage has seen it, or a stage behind it its gradient, and nobody else.
            assert {tuple(ids) for rank in told["guilty"] for ids in rank} == {(28, 29)}
        if name == "fp16":
            assert told["whys"].count("overflow") == 3


@pytest.mark.parametrize("sizes", SAMPLE[:1] if SAMPLE != MESHES else MESHES, ids=str)
def test_stages_that_are_resumed_have_the_same_bits_and_unpickle_nothing(sizes, tmp_path, importable):
    """Where fp16 moves the loss scale, averages are kept and activations are computed again, too."""
    case = Case(depth=4, dropout=0.2, precision="fp16", average=True, evaluated=False, activations="recompute", steps=5)
    case = asdict(replace(case, schedule=schedules_of(sizes)[0]))
    resumed(tmp_path, sizes, case)


def test_stages_go_on_from_a_commit_of_one_process_and_one_process_from_theirs(tmp_path, importable, one):
    case, run = Case(depth=4, dropout=0.2, average=True), tmp_path / "run"
    run.mkdir()
    wanted, losses = one("tied, dropout", case.steps), []
    for sizes, last in (({}, 2), ({"pipeline": 2}, 4), ({}, 6)):
        place = tmp_path / str(last)
        place.mkdir()
        ranks = started(place, "go_on", sizes, asdict(case), str(run), last)
        losses += ranks[0]["losses"]
    assert off(losses, wanted["losses"][:6]) < 4e-7


@pytest.mark.parametrize("places", [2, 3, 4])
def test_a_schedule_is_given_as_many_passes_as_it_takes_and_no_more_than_one_round_too_many(places):
    for passes in range(1, 20):
        assert fitting("gpipe", passes, places) == fitting("zbv", passes, places) == passes
        assert fitting("1f1b", passes, places) == max(passes, places)
        for kind in ("interleaved", "zero_bubble"):
            found = fitting(kind, passes, places)
            assert passes <= found < passes + places
            assert found % max(1, found // places) == 0
