"""Faults where tensors are cut: all write parts of a commit, and whatever happens to one, the bits are the same.

A sample of what `make drill` tries in all phases, on all ranks of every mesh that `drills.kills` names.
"""

import pytest

from drills.fault import ALL, Fault
from drills.runs import drill, leftovers, reference
from drivetrain.ledger.ledger import read

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

SHARDS = ("launch.processes=2", "parallel.shard=2")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The trace of an undisturbed run."""
    found = []

    def find(recipe):
        if not found:
            found.append(reference(recipe, tmp_path_factory.mktemp("reference") / "run", *SHARDS))
        return found[0]

    return find


@pytest.mark.parametrize(
    "fault",
    [
        Fault("kill", 1, "reduce", 7),
        Fault("kill", 1, "write", 10),
        Fault("kill", 0, "publish", 10),
        Fault("kill", ALL, "write", 10),
    ],
    ids=lambda fault: f"{fault.phase} of {fault.rank}",
)
def test_a_rank_that_is_killed_changes_no_bit(tiny, tmp_path, expected, fault):
    found = drill(tiny, tmp_path / "run", fault, *SHARDS)
    assert found.starts > 1
    assert found.trace == expected(tiny), found.outcome
    assert leftovers(tmp_path / "run") == []


def test_a_stage_that_is_killed_between_two_others_passes_changes_no_bit(tiny, tmp_path):
    stages = ("launch.processes=2", "parallel.pipeline=2", "task.model.depth=2")
    found = drill(tiny, tmp_path / "run", Fault("kill", 1, "backward", 7), *stages)
    assert found.starts > 1
    assert found.trace == reference(tiny, tmp_path / "reference", *stages), found.outcome
    assert leftovers(tmp_path / "run") == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_is_full_for_one_rank_misses_the_commit_for_all(tiny, tmp_path, expected, rank):
    run = tmp_path / "run"
    found = drill(tiny, run, Fault("no space", rank, "write", 5), *SHARDS)
    assert found.starts == 1
    assert found.trace == expected(tiny), found.outcome
    records = list(read(run / "ledger.jsonl"))
    made = [record["step"] for record in records if record["kind"] == "commit"]
    assert made == [10, 12]
    assert leftovers(run) == []
