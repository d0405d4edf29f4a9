"""Runs of ranks on a mesh, and how far what they tell is from what one process does."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import torch

from drivetrain.checkpoint.commit import load
from drivetrain.checkpoint.commits import names
from drivetrain.checkpoint.manifest import FOLDER
from drivetrain.launch.job import Job
from drivetrain.launch.preparation import CUTTING
from drivetrain.launch.supervisor import supervise


def started(folder: Path, worker: str, sizes: dict, *told) -> list:
    """What each rank of a mesh says."""
    world = prod(size for axis, size in sizes.items() if axis not in ("virtual_stages", "folded"))
    job = Job(folder=str(folder), recipe={}, origins={}, processes=world, overrides=[sizes, *told])
    outcome = supervise(job, worker=f"ranks_mesh:{worker}", preload=("torch", CUTTING))
    assert outcome.code == 0, outcome
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(job.processes)]


def resumed(folder: Path, sizes: dict, case: dict) -> None:
    """A run of five steps that is stopped after three has the losses, norms, scales and bits of one that is not, and
    nothing is unpickled on any rank."""
    found = []
    for run, ends in ((folder / "straight", [5]), (folder / "cut", [3, 5])):
        run.mkdir()
        for last in ends:
            place = folder / f"{run.name}-{last}"
            place.mkdir()
            ranks = started(place, "go_on", sizes, case, str(run), last)
            assert all(rank["unpickled"] == [] for rank in ranks)
        found.append((ranks[0], load(run / FOLDER / names(run)[0])[1].tensors))
    (whole, one), (rest, other) = found
    for what in ("losses", "norms", "scales"):
        assert rest[what] == whole[what][3:]
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def off(found: list[float], wanted: list[float]) -> float:
    """The largest relative difference."""
    return max((abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True) if b == b), default=0.0)


def apart(found: dict, wanted: dict) -> dict[str, float]:
    """The relative distance of each tensor."""
    assert found.keys() == wanted.keys()
    distances = {}
    for name, numbers in wanted.items():
        one, other = torch.tensor(found[name]).double(), torch.tensor(numbers).double()
        distances[name] = float((one - other).norm() / other.norm())
    return distances


def require_near(name: str, told: dict, wanted: dict, near: tuple[float, float, float, float]) -> None:
    """What a mesh tells of a case is what one process does, but for how sums are rounded. The loss is computed in
    float32 in any case, of parts of the logits where these are split."""
    losses, norms, gradients, weights = near
    assert off(told["losses"], wanted["losses"]) < losses, name
    assert off(told["norms"], wanted["norms"]) < norms, name
    assert told["whys"] == wanted["whys"], name
    assert told["scales"] == wanted["scales"], name
    assert max(apart(told["gradients"], wanted["gradients"]).values()) < gradients, name
    assert max(apart(told["weights"], wanted["weights"]).values()) < weights, name
    assert max(apart(told["averages"], wanted["averages"]).values(), default=0.0) < weights, name
    for found, one in zip(told["scores"], wanted["scores"], strict=True):
        assert off(found, one) < losses, name
