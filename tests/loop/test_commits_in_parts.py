"""Commits that ranks make together, each its part, and what becomes of them where one rank cannot."""

import json
import os

import pytest

from drivetrain.checkpoint.commit import verify
from drivetrain.checkpoint.commits import clean, newest
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.spec.exits import Exit
from ranks_commits import ROWS
from states import same, state

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def ranks(tmp_path, importable):
    """Runs a function of ranks_commits in so many processes; the outcome, and what each rank has said."""

    def run(worker, processes, *asked):
        job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=processes, overrides=asked, most_restarts=0)
        outcome = supervise(job, worker=f"ranks_commits:{worker}", preload=("torch", "ranks_commits"))
        paths = [tmp_path / f"said-{rank}.json" for rank in range(processes)]
        return outcome, [json.loads(path.read_text()) if path.exists() else None for path in paths]

    return run


@pytest.mark.parametrize(
    ("fault", "code", "cause"),
    [
        ("no_room", Exit.STORAGE, "File too large"),
        ("disk_error", Exit.STORAGE, "Input/output error"),
        ("other_bytes", Exit.STORAGE, "it reads back differently"),
        ("flip", Exit.CORRUPTION_SUSPECTED, "changed in memory between its snapshot and its writing"),
    ],
)
@pytest.mark.parametrize(("processes", "victim"), [(2, 0), (2, 1), (4, 2)])
def test_one_rank_s_fault_fails_the_commit_on_all_and_is_told_once(
    tmp_path, ranks, processes, victim, fault, code, cause
):
    outcome, said = ranks("commit", processes, fault, victim)
    assert outcome.code == 0, outcome
    require_one_miss(tmp_path, said, victim, code, cause)


def test_a_rank_that_writes_to_another_disk_fails_the_commit_and_is_named(tmp_path, ranks):
    outcome, said = ranks("commit", 2, "elsewhere", 1)
    assert outcome.code == 0, outcome
    require_one_miss(tmp_path, said, 1, Exit.STORAGE, "do they share this disk?")


def require_one_miss(run, said, victim, code, cause):
    """The commit of step 2 is missed, those before and after it are whole, and rank 0 has told of it."""
    first, *others = said
    assert [record[:2] for record in first["records"]] == [["commit", 1], ["miss", 2], ["commit", 3]]
    assert cause in first["records"][1][2]
    assert first["codes"] == [code]
    assert f"rank {victim}" in first["records"][1][2]
    assert all(rank["records"] == [] for rank in others)
    assert first["held"] == [state(rows=ROWS).tensors["networks/m/w"].nbytes] * 2
    assert first["there"] == ["step-00000001", "step-00000003"]
    for step in (1, 3):
        verify(run / "checkpoints" / f"step-{step:08d}")
    same(newest(run).state.tensors, state(3.0, rows=ROWS).tensors)


@pytest.mark.parametrize("victim", [0, 1])
def test_p01_a_writer_that_dies_publishes_nothing(tmp_path, ranks, victim):
    outcome, _ = ranks("commit", 2, "die", victim)
    assert outcome.code != 0
    assert newest(tmp_path).step == 1
    clean(tmp_path)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]


def test_s11_a_writer_whose_disk_stalls_for_too_long_ends_all_ranks_alike(tmp_path, ranks):
    _, said = ranks("commit", 2, "stall", 1)
    assert "stalls: nothing could be written" in said[0]["failure"]
    assert said[0]["failure"] == said[1]["failure"]
    assert newest(tmp_path).step == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_begins_no_part_leaves_no_commit_and_nobody_waits_for_it(ranks, victim):
    outcome, said = ranks("void", 2, victim)
    assert outcome.code == 0, outcome
    assert all(rank == {"again": True, "names": ["step-00000003", "step-00000001"]} for rank in said)


@pytest.mark.parametrize(("wrote", "processes"), [(3, 2), (2, 3), (4, 4)])
def test_ranks_read_what_they_hold_of_what_others_wrote_and_no_other_file(ranks, wrote, processes):
    outcome, said = ranks("read", processes, wrote, -1, "", "")
    assert outcome.code == 0, outcome
    assert all((rank["step"], rank["passed"], rank["failure"]) == (2, [], "") for rank in said)
    if wrote == processes:  # and rank 0's, for what has no rows
        for rank, each in enumerate(said):
            opened = {name for name in each["opened"] if name.startswith("tensors")}
            assert opened == {f"tensors-{n:05d}-00000.safetensors" for n in {0, rank}}


@pytest.mark.parametrize(("wrote", "processes"), [(2, 3), (3, 3)])
def test_what_a_rank_has_checked_and_kept_is_not_read_again(ranks, wrote, processes):
    outcome, said = ranks("read", processes, wrote, -1, "", "", "keep")
    assert outcome.code == 0, outcome
    assert all((rank["step"], rank["failure"]) == (2, "") for rank in said)
    if wrote == processes:  # rank 0's, for what has no rows
        for rank, each in enumerate(said):
            opened = {name for name in each["opened"] if name.startswith("tensors")}
            assert opened == ({"tensors-00000-00000.safetensors"} if rank else set())


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("file", ["boxes-00001.json", "values-00000.json", "MANIFEST.json"])
def test_what_one_rank_cannot_read_all_pass_over(ranks, victim, file):
    outcome, said = ranks("read", 3, 2, victim, file, "found")
    assert outcome.code == 0, outcome
    assert [rank["step"] for rank in said] == [1] * 3
    (reason,) = said[0]["passed"]
    assert [rank["passed"] for rank in said] == [[reason]] * 3
    assert "cannot be read: [Errno 5]" in reason


def test_a_file_that_changes_after_it_was_checked_ends_all_ranks_alike(ranks):
    outcome, said = ranks("read", 3, 3, 2, "tensors-00002-00000.safetensors", "read")
    assert outcome.code == 0, outcome
    assert len({rank["failure"] for rank in said}) == 1
    assert "is not where it is read" in said[0]["failure"]


def test_each_rank_uploads_its_part_as_soon_as_the_commit_is_there(tmp_path, ranks):
    outcome, _ = ranks("mirrored", 3)
    assert outcome.code == 0, outcome
    there = tmp_path / "mirror" / "checkpoints" / "step-00000001"
    here = tmp_path / "checkpoints" / "step-00000001"
    assert sorted(os.listdir(there)) == sorted(os.listdir(here))
    assert all((there / name).read_bytes() == (here / name).read_bytes() for name in os.listdir(here))
