"""Whoever asks a placement, with ranks that hold halves: in the place of meshes, which are tried where they are."""

import json

import pytest
import torch

from drivetrain.engine.placement import Replicated
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.loop.guard import Guard
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Guard as GuardSettings
from drivetrain.loop.state import RunState
from drivetrain.runtime.group import Group
from ranks_placement import SAMPLES, STEPS, engine_of, network, reader_of, train


@pytest.fixture
def whole():
    """One process that holds everything: its first weights, its norms, and what it commits at the end."""
    torch.manual_seed(0)
    layer, placement = network(4), Replicated(Group())
    first = {name: tensor.tolist() for name, tensor in layer.state_dict().items()}
    engine = engine_of(layer, placement)
    norms = train(engine, reader_of(placement))
    tree = RunState(engine, placement, Guard(GuardSettings()), Progress(STEPS, SAMPLES)).tree()
    return first, norms, tree.tensors


def test_two_halves_come_to_what_one_whole_does(tmp_path, importable, whole):
    """Clipped by the norm of both halves, read as one place of the batch, committed each part once."""
    first, norms, tensors = whole
    commit = {name: tensor.tolist() for name, tensor in tensors.items()}
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=2, overrides=[first, commit])
    outcome = supervise(job, worker="ranks_placement:halves", preload=("torch",))
    assert outcome.code == 0, outcome
    upper, lower = json.loads(outcome.cause)
    assert upper["norms"] == lower["norms"] == pytest.approx(norms, rel=1e-5)
    assert min(norms) > 0.01, "they were clipped"
    for name, tensor in tensors.items():
        if not tensor.ndim:  # held by both, counted by the first
            assert name not in lower["tensors"]
            assert upper["tensors"][name] == tensor.item()
            continue
        put_together = torch.tensor(upper["tensors"][name] + lower["tensors"][name])
        assert torch.allclose(put_together, tensor, rtol=1e-4, atol=1e-6), name
        assert upper["parts"][name] == lower["parts"][name] == [len(tensor) // 2, *tensor.shape[1:]]
    assert upper["ids"] == lower["ids"]
    assert len(upper["ids"]) == 8
    assert upper["digest"], "samples are told once, though both read them"
    assert upper["counts"] == {"samples": 8}
    assert upper["scores"] == lower["scores"] == {"samples": SAMPLES}


def test_whole_tensors_are_the_leaders_to_commit():
    leader, other = Replicated(Group(0, 2)), Replicated(Group(1, 2))
    tensors = {"networks/model/weight": torch.ones(2)}
    assert leader.counted(tensors) == tensors
    assert other.counted(tensors) == {}
    assert leader.data.world == other.replicas.world == 2
    assert other.part("networks/model/weight", tensors["networks/model/weight"]) is tensors["networks/model/weight"]
