"""What Slurm's commands say, where it is not what a job wants to hear."""

import time
from dataclasses import replace

import pytest

from drivetrain.launch import attempts
from drivetrain.launch.job import StartOptions
from drivetrain.launch.job_runner import CANCEL
from drivetrain.launch.preparation import plan
from drivetrain.launch.states import State
from drivetrain.launch.store import Record
from drivetrain.launch.targets.config import build, settings_from
from drivetrain.launch.targets.shared import lay, mark_cancelled
from drivetrain.launch.targets.slurm_allocation import Allocation
from drivetrain.launch.targets.slurm_commands import duration
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def job(tmp_path):
    return plan(
        "quickstart",
        [],
        "x",
        settings_from("x", {"kind": "slurm"}),
        options=StartOptions(started=0.0),
        run=str(tmp_path / "run"),
    )


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Commands that print their words to stderr and fail."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(text, status=1):
        for name in ("squeue", "sacct", "sbatch", "scontrol"):
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}' >&{2 if status else 1}\nexit {status}\n")
            (tmp_path / name).chmod(0o755)

    return put


def test_a_job_is_lost_only_where_slurm_says_that_there_is_none(job, says):
    says("slurm_load_jobs error: Invalid job id specified")
    assert build(job.settings).look(job, "7").state is State.LOST
    for text, code in (
        ("squeue: error: Munge encode failed\nslurm_load_jobs error: Protocol authentication error", 69),
        ("squeue: fatal: Could not establish a configuration source", 69),
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
        build(settings).render(plan("quickstart", [], "x", settings, options=StartOptions(started=0.0)))


def test_a_run_on_one_machines_disk_is_refused():
    settings = settings_from("x", {"kind": "slurm", "runs": "s3://bucket/runs"})
    with pytest.raises(Failure, match="on one machine's disk"):
        build(settings).render(plan("quickstart", [], "x", settings, options=StartOptions(started=0.0)))


def test_an_option_of_0_is_passed_on_and_one_that_is_false_is_not():
    settings = settings_from("x", {"kind": "slurm", "extras": {"priority": 0, "exclusive": False, "overcommit": True}})
    command = (
        build(settings).render(plan("quickstart", [], "x", settings, options=StartOptions(started=0.0)))[0].body.split()
    )
    assert {"--priority=0", "--overcommit"} <= set(command)
    assert not any(word.startswith("--exclusive") for word in command)


def test_what_a_job_was_told_is_read_from_the_folder_of_its_script(job, says):
    lay(job)
    says(f"JobId=7 JobName={job.token} Command={job.folder}/job.sh python {job.folder}/work.json WorkDir=/", 0)
    assert build(job.settings).work("7").text() == job.work.text()
    says("JobId=7 JobName=other Command=/bin/sleep 1 WorkDir=/", 0)
    with pytest.raises(Failure, match="another script than ours"):
        build(job.settings).work("7")


def test_a_requeued_job_whose_lost_node_slurm_waits_for_is_requeued_and_asked_again_it_stays_so(job, says, tmp_path):
    lay(job)
    target = build(job.settings)
    says("COMPLETING|None|2026-11-21T21:03:42", 0)
    assert target.look(job, "7").state is State.STOPPING
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho Job is pending execution for job 7 >&2\nexit 1\n")
    mark_cancelled(job)
    assert target.requeue(job, "7") == "7"
    assert not (job.folder / CANCEL).exists()
    attempts.write(job.folder, attempts.Attempts(state="requeued"))
    assert target.look(job, "7").state is State.REQUEUED


@pytest.mark.parametrize("word", ["NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"])
def test_what_slurm_ended_without_a_word_of_the_job_has_failed_and_is_looked_at_again(job, says, word):
    says(f"{word}|None|N/A", 0)
    record = replace(Record.of(job, "quickstart", 0.0), native="7").after(build(job.settings).look(job, "7"), 1.0)
    assert (record.state, record.ended) == (State.FAILED, False)


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [("30:00", 1800), ("1:00:00", 3600), ("2-01:00:05", 176405), ("0:45", 45), ("UNLIMITED", None), ("INVALID", None)],
)
def test_time_limits_as_slurm_shows_them(shown, seconds):
    assert duration(shown) == seconds


@pytest.mark.parametrize(("limit", "requeued"), [("1:00:00", False), ("0:30", True)])
def test_a_job_that_is_ending_is_requeued_where_its_time_is_up_and_not_where_it_was_cancelled(
    job, says, tmp_path, limit, requeued
):
    """Both are COMPLETING, with an end in the past."""
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 60))
    says("", 0)
    shows = f"case $* in *%T*) echo COMPLETING ;; *) echo '{began}|{limit}' ;; esac"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{shows}\n")
    allocation = Allocation(job.work, {"SLURM_JOB_ID": "7"})
    if requeued:
        allocation.requeue()
    else:
        with pytest.raises(Failure, match="Slurm is ending the job"):
            allocation.requeue()
