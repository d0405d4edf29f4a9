"""Jobs on a real Slurm of two nodes on this machine, two processes each."""

import shlex
import tempfile
from pathlib import Path

import pytest

import drivetrain
import slurm_lab
from conftest import trace
from slurm_lab import lab

pytestmark = [
    pytest.mark.skipif(bool(slurm_lab.missing()), reason=str(slurm_lab.missing())),
    pytest.mark.xdist_group("slurm"),
]
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
    done = cluster.until(job, "succeeded")
    assert (done["native_state"], done["attempt"], done["step"], restarts(slurm, native)) == ("COMPLETED", 2, 40, 2)
    assert trace(cluster.run) == cluster.undisturbed("paced.yaml")
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
    cluster.gate.touch()
    slurm.node_up("n1")
    cluster.until(job, "succeeded")
    assert trace(cluster.run) == cluster.undisturbed("paced.yaml")
