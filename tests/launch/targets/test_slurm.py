"""What Slurm's commands say, where it is not what a job wants to hear."""

import pytest

from drivetrain.launch.states import State
from drivetrain.launch.submission import plan
from drivetrain.launch.targets.config import build, settings_from
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def job(tmp_path):
    return plan("quickstart", [], "x", settings_from("x", {"kind": "slurm"}), started=0.0, run=str(tmp_path / "run"))


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Commands that print their words to stderr and fail."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(text, status=1):
        for name in ("squeue", "sacct", "sbatch"):
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}' >&{2 if status else 1}\nexit {status}\n")
            (tmp_path / name).chmod(0o755)

    return put


def test_a_job_is_lost_only_where_slurm_says_that_there_is_none(job, says):
    says("slurm_load_jobs error: Invalid job id specified")
    assert build(job.settings).look(job, "7").state is State.LOST
    for text, code in (
        ("squeue: error: Munge encode failed\nslurm_load_jobs error: Protocol authentication error", 69),
        ("slurm_load_jobs error: Access/permission denied", Exit.BAD_RECIPE),
    ):
        says(text)
        with pytest.raises(Failure) as failure:
            build(job.settings).look(job, "7")
        assert failure.value.outcome.code == code


def test_what_names_no_job_is_not_taken_for_one(job, says):
    says("slurm-wlm 22.05.8", 0)
    with pytest.raises(Failure, match="names no job"):
        build(job.settings).submit(job)


@pytest.mark.parametrize("name", ["output", "outpu", "job-nam", "reque", "J", "version", "clusters"])
def test_an_option_of_ours_is_refused_also_where_it_is_cut_short(name):
    settings = settings_from("x", {"kind": "slurm", "extras": {name: "1"}})
    with pytest.raises(Failure, match="follows from the job's description"):
        build(settings).render(plan("quickstart", [], "x", settings, started=0.0))


def test_an_option_of_0_is_passed_on_and_one_that_is_false_is_not():
    settings = settings_from("x", {"kind": "slurm", "extras": {"priority": 0, "exclusive": False, "overcommit": True}})
    command = build(settings).render(plan("quickstart", [], "x", settings, started=0.0))[0].body.split()
    assert {"--priority=0", "--overcommit"} <= set(command)
    assert not any(word.startswith("--exclusive") for word in command)
