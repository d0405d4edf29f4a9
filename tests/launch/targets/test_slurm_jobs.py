"""Jobs on a real Slurm of two nodes on this machine, two processes each."""

import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import drivetrain
import slurm_lab
from conftest import trace
from processes import wait_until
from slurm_lab import lab

pytestmark = [
    pytest.mark.skipif(bool(slurm_lab.missing()), reason=str(slurm_lab.missing())),
    pytest.mark.xdist_group("slurm"),
]
drill = pytest.mark.skipif("DRILL" not in os.environ, reason="slow: `make drill-slurm`")
DUMP = """#!/bin/bash
for file; do :; done
printf "%s\\0" "$@" > "${file%/*}/arguments"
env > "${file%/*}/env"
"""
CLUSTER = {"kind": "slurm", "nodes": 2, "processes": 2, "queue": "main"}


@pytest.fixture(scope="module")
def slurm():
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, lab(Path(folder) / "lab") as made:
        Path(folder).chmod(0o755)
        yield made


@pytest.fixture
def cluster(desk, slurm, monkeypatch):
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    setup = desk.folder / "setup.sh"  # the package that is tested, wherever it lies
    setup.write_text(f"export PYTHONPATH={shlex.quote(str(Path(drivetrain.__file__).parent.parent))}\n")
    desk.targets(cluster=CLUSTER | {"setup": str(setup)})
    desk.write("paced.yaml")
    yield desk
    for line in slurm("squeue", "-h", "-o", "%i").split():
        slurm("scancel", line)
    slurm.wait_idle()


def restarts(slurm, native):
    shown = slurm("scontrol", "show", "job", "-o", native)
    return int(shown.split("Restarts=")[1].split()[0])


def test_l02_l04_l05_stopped_by_a_signal_to_the_script_then_preempted_it_ends_with_the_same_bits(cluster, slurm):
    job = cluster.submit("paced.yaml", to="cluster")
    assert cluster.submit("paced.yaml", to="cluster") == job
    native = cluster.until(job, "running", step=5)["native"]
    slurm("scancel", "--signal=USR1", "--batch", native)  # as Slurm does before the walltime
    stopped = cluster.until(job, "requeued")
    assert stopped["committed"] == stopped["step"]
    cluster.until(job, "running", step=stopped["step"] + 2)
    slurm("sbatch", "-p", "high", "-N2", "--ntasks-per-node=8", "--wrap", "sleep 1")
    preempted = cluster.until(job, "requeued", attempt=2)
    assert preempted["committed"] == preempted["step"]
    cluster.gate.touch()
    assert "step 40/40" in cluster("logs", job, "--follow")
    done = cluster.until(job, "succeeded")
    assert (done["native_state"], done["attempt"], done["step"], restarts(slurm, native)) == ("COMPLETED", 2, 40, 2)
    assert trace(cluster.run) == cluster.undisturbed()
    assert cluster("logs", job).count("75 stopped and committed") == 4  # told by the node and by the conductor
    assert [row["job"] for row in cluster.json("jobs", "--all")] == [job]
    assert cluster.json("requeue", job)["state"] == "succeeded"


def test_l08_cancelled_it_commits_and_stays_cancelled(cluster, slurm):
    job = cluster.submit("paced.yaml", to="cluster")
    native = cluster.until(job, "running", step=5)["native"]
    cluster("cancel", job)
    ended = cluster.until(job, "cancelled")
    assert ended["native_state"] == "CANCELLED"
    assert ended["committed"] == ended["step"]
    assert restarts(slurm, native) == 0
    assert "Requeue=0" in slurm("scontrol", "show", "job", "-o", native)


def test_l09_a_mistake_in_the_recipe_is_not_requeued(cluster, slurm):
    cluster.write("wrong.yaml", seconds="much")
    job = cluster.submit("wrong.yaml", to="cluster")
    ended = cluster.until(job, "failed")
    assert (ended["code"], ended["native_state"], restarts(slurm, ended["native"])) == (78, "FAILED", 0)
    assert "seconds" in ended["reason"]


def test_l01_a_lost_node_is_waited_for_and_the_job_goes_on_from_its_commit(cluster, slurm):
    cluster.write("paced.yaml", after=12)
    job = cluster.submit("paced.yaml", to="cluster")
    cluster.until(job, "running", step=12)
    slurm.node_lost("n1")
    lost = cluster.until(job, "requeued", "pending")
    assert lost["committed"] == 10
    assert cluster.json("requeue", job)["state"] == "requeued"  # it is already, and Slurm says that it waits for n1
    cluster.gate.touch()
    slurm.node_up("n1")
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed()


def test_x15_what_real_sbatch_is_given_comes_out_as_it_was(cluster, slurm, monkeypatch):
    python = cluster.folder / "python"
    python.write_text(DUMP)
    python.chmod(0o755)
    monkeypatch.setenv("SECRET_OF_MINE", "nobody's business")
    names = [
        "$(touch pwned)",
        "a\nb'\"; touch pwned",
        "%j %x \\",
        "\n#SBATCH --wrap=touch pwned",
        "ünï 🚂 --help",
        "-x",
    ]
    extras = {"mail-user": "`touch pwned`\n$(touch pwned)"}
    cluster.targets(cluster={"kind": "slurm", "python": str(python), "extras": extras})
    jobs = [
        cluster.json("submit", "paced.yaml", "--to", "cluster", "--run", str(cluster.folder / name))["job"]
        for name in names
    ]
    for job, name in zip(jobs, names, strict=True):
        assert cluster.until(job, "succeeded")["run"] == str(cluster.folder / name)
        folder = cluster.folder / name / "launch" / job
        got = (folder / "arguments").read_bytes().decode().split("\0")[:-1]
        assert got == ["-m", "drivetrain", "worker", "--conduct", "slurm", str(folder / "work.json")]
        assert "nobody's business" not in (folder / "env").read_text()
        assert (folder / "output" / "conductor.log").read_text() == ""
    assert not list(cluster.folder.rglob("pwned"))


@drill
@pytest.mark.parametrize("layout", ["parallel.shard=4", "parallel={replicate: 2, shard: 2}"])
def test_sharded_over_nodes_it_is_requeued_and_loses_a_node_and_has_the_same_bits(cluster, slurm, layout):
    cluster.write("paced.yaml", after=12)
    job = cluster.submit("paced.yaml", layout, to="cluster")
    native = cluster.until(job, "running", step=12)["native"]
    slurm("scancel", "--signal=USR1", "--batch", native)
    stopped = cluster.until(job, "requeued")
    assert stopped["committed"] == stopped["step"]
    cluster.until(job, "running", step=stopped["step"] + 2)
    slurm.node_lost("n1")
    cluster.until(job, "requeued", "pending")
    cluster.gate.touch()
    slurm.node_up("n1")
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed(4, layout)


@drill
def test_sharded_it_goes_on_with_another_number_of_processes_and_the_same_samples(cluster, slurm):
    setup = str(cluster.folder / "setup.sh")
    cluster.targets(cluster=CLUSTER | {"setup": setup}, small=CLUSTER | {"setup": setup, "processes": 1})
    first = cluster.submit("paced.yaml", "parallel.shard=auto", to="cluster")
    cluster.until(first, "running", step=5)
    cluster("cancel", first)
    cluster.until(first, "cancelled")
    cluster.gate.touch()
    cluster.until(cluster.submit("paced.yaml", "parallel.shard=auto", to="small"), "succeeded")
    assert trace(cluster.run).samples == cluster.undisturbed().samples


@drill
def test_l03_a_grace_too_short_for_a_step_costs_the_steps_since_the_commit(cluster, slurm):
    cluster.targets(cluster=CLUSTER | {"queue": "brief"})
    cluster.write("paced.yaml", after=14, seconds=40.0)
    job = cluster.submit("paced.yaml", "launch.hang_after=60", to="cluster")
    cluster.until(job, "running", step=11)  # records of later steps may come only after step 14
    slurm("sbatch", "-p", "high", "-N2", "--ntasks-per-node=8", "--wrap", "sleep 1")
    assert cluster.until(job, "requeued", "pending")["committed"] == 10
    cluster.gate.touch()
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed()


@drill
def test_l04_it_stops_by_its_own_clock_before_the_walltime(cluster, slurm):
    cluster.targets(cluster=CLUSTER | {"walltime": "1m", "lead": 0})
    cluster.write("paced.yaml", seconds=1.0)
    job = cluster.submit("paced.yaml", "stop.margin=35", to="cluster")
    stopped = cluster.until(job, "requeued")
    assert stopped["committed"] == (stopped["step"] or 0)
    assert "the deadline" in cluster("logs", job)
    cluster.gate.touch()
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed()


@drill
def test_l05_a_signal_to_the_steps_alone_is_a_requeue_too(cluster, slurm):
    job = cluster.submit("paced.yaml", to="cluster")
    native = cluster.until(job, "running", step=5)["native"]
    slurm("scancel", "--signal=TERM", f"{native}.0")
    cluster.until(job, "requeued")
    cluster.gate.touch()
    cluster.until(job, "succeeded")
    slurm("scontrol", "requeue", native)  # l06: behind our back, of a job that is done
    log = cluster.run / "launch" / job / "output" / "conductor.log"
    wait_until(lambda: "nothing is left to do" in log.read_text(), 90)
    assert len(list(log.parent.glob("*-node-0.log"))) == 2


@drill
def test_l07_a_copy_that_was_stopped_and_requeued_does_no_harm(cluster, slurm):
    job = cluster.submit("paced.yaml", to="cluster")
    cluster.until(job, "running", step=5)
    for pid in slurm.tasks("n1"):
        os.kill(pid, signal.SIGSTOP)
    cluster("requeue", job)
    cluster.until(job, "requeued")
    cluster.gate.touch()
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed()


@drill
def test_l08_a_bare_scancel_is_no_reason_to_come_back(cluster, slurm):
    job = cluster.submit("paced.yaml", to="cluster")
    native = cluster.until(job, "running", step=5)["native"]
    slurm("scancel", native)
    cluster.until(job, "cancelled")
    time.sleep(10)
    assert restarts(slurm, native) == 0
    cluster.gate.touch()
    assert cluster.json("requeue", job)["native"] != native
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed()


@drill
def test_l10_a_crash_loop_ends_and_tells_of_every_attempt(cluster, slurm):
    cluster.write("paced.yaml", crash=5, victim=2)
    job = cluster.submit("paced.yaml", to="cluster")
    ended = cluster.until(job, "failed", timeout=180)
    assert (ended["code"], restarts(slurm, ended["native"])) == (70, 0)
    assert "3 attempts in a row without a new commit" in ended["reason"]
    assert (cluster.run / "exit.json").read_text().count("rank 2 was ended by SIGKILL") == 4


@drill
def test_l11_slurmctld_is_away_when_it_is_needed(cluster, slurm):
    job = cluster.submit("paced.yaml", to="cluster")
    cluster.until(job, "running", step=5)
    slurm.controller_down()
    for pid in slurm.tasks("n0"):
        os.kill(pid, signal.SIGTERM)
    threading.Timer(8, slurm.controller_up).start()
    wait_until(lambda: "75 stopped" in (cluster.run / "launch" / job / "output" / "conductor.log").read_text(), 90)
    cluster.gate.touch()
    time.sleep(10)
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed()


@drill
def test_l12_of_two_array_tasks_with_one_run_directory_one_ends_with_85(cluster, slurm):
    train = f"{shlex.quote(sys.executable)} -m drivetrain train paced.yaml --run run"
    slurm("sbatch", "--array=0-1", "--output=%a.log", "-n1", "--wrap", f". ./setup.sh; {train}; echo ended $?")
    logs = [cluster.folder / "0.log", cluster.folder / "1.log"]
    wait_until(lambda: any(log.exists() and "ended 85" in log.read_text() for log in logs), 90)
    cluster.gate.touch()
    wait_until(lambda: any("ended 0" in log.read_text() for log in logs), 90)
