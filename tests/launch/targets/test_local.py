"""Jobs in the background of this machine: the real command line, the real processes."""

import os
import signal
import subprocess

import pytest

from conftest import trace
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.targets.config import settings_from
from drivetrain.launch.targets.local import LocalJobs
from drivetrain.launch.targets.shared import mark_cancelled
from drivetrain.spec.exits import Exit, Failure

PAIR = {"kind": "local", "nodes": 2}


def test_two_nodes_killed_cancelled_and_started_again_end_with_the_same_bits(desk):
    desk.targets(pair=PAIR)
    recipe = desk.write("paced.yaml", crash=14, victim=1, after=12)
    job = desk.submit(recipe, to="pair")
    assert desk.submit(recipe, to="pair") == job
    again = desk.until(job, "running", attempt=1)  # rank 1, on the second node, has killed itself
    assert again["committed"] == 10
    desk("cancel", job)
    ended = desk.until(job, "cancelled")
    assert "rank 1 was ended by SIGKILL" in desk("logs", job)
    assert not [row for row in desk.json("jobs") if row["job"] == job]
    desk.gate.touch()
    assert desk.json("requeue", job)["state"] == "requeued"
    done = desk.until(job, "succeeded")
    assert (done["step"], done["code"]) == (40, 0)
    assert done["attempt"] > ended["attempt"]
    assert trace(desk.run) == desk.undisturbed(2)
    assert desk.json("requeue", job)["state"] == "succeeded"
    assert desk.submit(recipe, to="pair") != job


def test_a_mesh_across_two_nodes_commits_in_parts(desk):
    desk.targets(pair=PAIR)
    desk.gate.touch()
    job = desk.submit(desk.write("paced.yaml"), "parallel.shard=auto", to="pair")
    assert desk.until(job, "succeeded")["step"] == 40
    assert trace(desk.run) == desk.undisturbed(2, "parallel.shard=2")
    commit = max((desk.run / "checkpoints").glob("step-*"))
    assert (commit / "tensors-00001-00000.safetensors").is_file()


def test_a_job_whose_processes_are_all_killed_is_lost_and_can_be_started_again(desk):
    recipe = desk.write("paced.yaml")
    job = desk.submit(recipe, to="local")
    native = desk.until(job, "running", step=3)["native"]
    os.kill(int(native.partition(":")[0]), signal.SIGKILL)
    desk.until(job, "lost")
    desk.gate.touch()
    desk("requeue", job)
    assert desk.until(job, "succeeded")["step"] == 40
    followed = desk("logs", job, "--follow")
    assert "the job's first node was lost" in followed
    assert "step 40/40" in followed


def test_the_working_tree_travels_and_what_is_changed_later_does_not_matter(desk):
    desk.targets(packed={"kind": "local", "code": {"kind": "archive"}})
    recipe = desk.write("paced.yaml")
    (desk.folder / ".gitignore").write_text("jobs\nrun\n")
    subprocess.run(["git", "init", "-q"], cwd=desk.folder, check=True)
    desk.gate.touch()
    job = desk.submit(recipe, to="packed")
    (desk.folder / "paced.py").write_text("raise RuntimeError('another version')\n")
    assert "step 40/40" in desk("attach", job)
    assert desk.until(job, "succeeded")["step"] == 40


def test_an_interpreter_that_is_not_there_is_told_not_traced(tmp_path):
    settings = settings_from("none", {"kind": "local", "python": "/nowhere/python"})
    job = plan("quickstart", [], "none", settings, options=StartOptions(started=0.0), run=str(tmp_path / "run"))
    with pytest.raises(Failure, match="/nowhere/python cannot be started") as failure:
        LocalJobs(settings).submit(job)
    assert failure.value.outcome.code == Exit.INPUT_MISSING
    folders = [path for path in job.run.rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_a_job_whose_run_directory_is_gone_can_be_cancelled(tmp_path):
    settings = settings_from("here", {"kind": "local"})
    job = plan("quickstart", [], "here", settings, options=StartOptions(started=0.0), run=str(tmp_path / "gone"))
    mark_cancelled(job)
    LocalJobs(settings).cancel(job, "0:0")
    assert not job.run.exists()


@pytest.mark.cold  # its process is waited for by its number
def test_a_submit_that_is_killed_once_its_process_runs_can_be_cancelled_at_once(desk, monkeypatch):
    started = []
    submit = LocalJobs.submit

    def killed(self, job):
        started.append(submit(self, job))
        raise KeyboardInterrupt

    with monkeypatch.context() as then:
        then.setattr(LocalJobs, "submit", killed)
        desk("submit", desk.write("paced.yaml"), "--run", str(desk.run), code=Exit.STOPPED)
    job = desk.json("jobs")[0]["job"]
    assert desk.json("cancel", job)["state"] == "cancelled"
    os.waitpid(int(started[0].partition(":")[0]), 0)
    assert "cancelled before it began" in (desk.run / "launch" / job / "output" / "conductor.log").read_text()
    assert not (desk.run / "ledger.jsonl").exists()
    assert desk.json("requeue", job)["state"] == "pending"
    assert not (desk.run / "launch" / job / "cancel").exists()
    desk("cancel", job)
    desk.until(job, "cancelled")
