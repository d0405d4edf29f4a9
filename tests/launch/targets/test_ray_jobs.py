"""Jobs on a real Ray of two nodes on this machine, two processes each: `make drill-ray`."""

import json
import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import drivetrain
from conftest import trace

PYTHON = os.environ.get("DRIVETRAIN_RAY", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="DRIVETRAIN_RAY names no Python that has ray"),
    pytest.mark.timeout(900),
]
PORT, DASHBOARD = 6398, 8298
COMMON = ("--node-ip-address=127.0.0.1", "--num-cpus=2", "--disable-usage-stats", "--object-store-memory=100000000")
HEAD = (
    *("--head", f"--port={PORT}", "--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD}"),
    *("--ray-client-server-port=20001", "--min-worker-port=21000", "--max-worker-port=21499"),
    "--dashboard-agent-listen-port=52401",
)
SECOND = (
    *(f"--address=127.0.0.1:{PORT}", "--min-worker-port=21500", "--max-worker-port=21999"),
    "--dashboard-agent-listen-port=52402",
)


def answers():
    """How many machines the dashboard knows to be there."""
    try:
        with urlopen(f"http://127.0.0.1:{DASHBOARD}/nodes?view=summary", timeout=5) as answer:
            found = json.load(answer)["data"]["summary"]
    except (URLError, OSError, KeyError, ValueError):
        return 0
    return sum(one["raylet"].get("state") == "ALIVE" for one in found)


@contextmanager
def machine(options, environment, log, wanted):
    """One of Ray's machines, once there are `wanted` of them. Ray itself gives up after 30 s on a busy host."""
    start = [PYTHON, "-m", "ray.scripts.scripts", "start", "--block", *COMMON, *options]
    patience = time.monotonic() + 300
    with log.open("ab") as file:
        node = subprocess.Popen(start, env=environment, stdout=file, stderr=file)
        try:
            while answers() < wanted:
                assert time.monotonic() < patience, log.read_text()
                if node.poll() is not None:
                    node = subprocess.Popen(start, env=environment, stdout=file, stderr=file)
                time.sleep(1)
            yield
        finally:
            node.terminate()
            node.wait(60)


@pytest.fixture(scope="module")
def ray():
    own = {"PYTHONPATH": str(Path(drivetrain.__file__).parent.parent), "RAY_AUTH_MODE": "disabled"}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log"
        head = (*HEAD, f"--temp-dir={folder}/s")
        with machine(head, environment, log, 1), machine(SECOND, environment, log, 2):
            yield


@pytest.fixture
def cluster(desk, ray):
    there = {"kind": "ray", "nodes": 2, "processes": 2, "cpus": 1, "python": PYTHON}
    desk.targets(cluster=there | {"address": f"http://127.0.0.1:{DASHBOARD}"})
    desk.write("paced.yaml")
    return desk


def test_a_rank_that_is_killed_is_one_attempt_more_and_the_same_bits(cluster):
    cluster.write("paced.yaml", crash=15, victim=3)
    job = cluster.submit("paced.yaml", to="cluster")
    assert cluster.submit("paced.yaml", to="cluster") == job
    cluster.until(job, "running", step=12, timeout=300)
    until = time.monotonic() + 300
    while "attempt 0 ended with 69" not in cluster("logs", job):
        assert time.monotonic() < until
        time.sleep(1)
    cluster.gate.touch()
    cluster.until(job, "succeeded", timeout=300)
    assert trace(cluster.run) == cluster.undisturbed()
    assert cluster.json("requeue", job)["state"] == "succeeded"


def test_cancelled_it_commits_and_requeued_it_ends_with_the_same_bits(cluster):
    job = cluster.submit("paced.yaml", to="cluster")
    cluster.until(job, "running", step=12, timeout=300)
    cluster("cancel", job)
    ended = cluster.until(job, "cancelled", timeout=300)
    assert (ended["native_state"], ended["committed"]) == ("STOPPED", ended["step"])
    cluster.gate.touch()
    cluster("requeue", job)
    cluster.until(job, "succeeded", timeout=300)
    assert trace(cluster.run) == cluster.undisturbed()


def test_a_mistake_in_the_recipe_is_not_tried_again(cluster):
    cluster.write("wrong.yaml", seconds="much")
    job = cluster.submit("wrong.yaml", to="cluster")
    ended = cluster.until(job, "failed", timeout=300)
    assert (ended["code"], ended["native_state"]) == (78, "FAILED")
    assert "attempt 1" not in cluster("logs", job)
