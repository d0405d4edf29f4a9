"""Jobs in real pods of a Kubernetes of two nodes on this machine, two processes each: `make drill-kubernetes`."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import trace
from drivetrain.launch.targets.kubectl import Kubectl
from drivetrain.launch.targets.kubernetes import Kubernetes
from drivetrain.launch.targets.kubernetes_apis import APIS, INDEX
from drivetrain.launch.targets.remote import Refused
from kubernetes_lab.cluster import HOST, IMAGE, extensions, missing
from kubernetes_lab.cluster import cluster as lab
from kubernetes_lab.definitions import definition
from submissions import submission

PROGRAMS = os.environ.get("DRIVETRAIN_KUBERNETES", "")
pytestmark = [
    pytest.mark.skipif(not PROGRAMS, reason="DRIVETRAIN_KUBERNETES names no folder with Kubernetes' own programs"),
    pytest.mark.timeout(900),
]
PATIENCE = 300.0  # seconds: four interpreters import torch on each start


@pytest.fixture(scope="module")
def kubernetes():
    assert missing(Path(PROGRAMS)) is None
    with (
        tempfile.TemporaryDirectory(prefix="kubernetes-") as folder,
        lab(Path(PROGRAMS), Path(folder) / "l") as made,
    ):
        yield made


@pytest.fixture
def cluster(desk, kubernetes, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.config))
    here = {"source": str(desk.folder), "path": str(desk.folder), "read_only": False}
    desk.targets(
        k8s={
            "kind": "kubernetes",
            "nodes": 2,
            "processes": 2,
            "retries": 3,
            "image": IMAGE,
            "python": sys.executable,
            "folder": str(desk.folder),
            "mounts": [*({"source": place, "path": place} for place in HOST), here],
            "shared_memory": 64,
            "grace": 60,
        }
    )
    desk.write("paced.yaml")
    return desk


def test_a_pod_that_is_killed_comes_again_and_the_bits_are_the_same(cluster, kubernetes):
    job = cluster.submit("paced.yaml", to="k8s")
    assert cluster.submit("paced.yaml", to="k8s") == job
    cluster.until(job, "running", step=12, timeout=PATIENCE)
    os.kill(kubernetes.worker(job, 1), signal.SIGKILL)
    cluster.until(job, "requeued", "running", attempt=1, timeout=PATIENCE)
    cluster.until(job, "running", timeout=PATIENCE)
    cluster.gate.touch()
    assert "step 40/40" in cluster("logs", job, "--follow")
    done = cluster.until(job, "succeeded", timeout=PATIENCE)
    assert (done["native_state"], done["step"]) == ("Complete", 40)
    assert trace(cluster.run) == cluster.undisturbed()
    assert "step 40/40" not in cluster("logs", job, "--rank", "2")
    assert [row["job"] for row in cluster.json("jobs", "--all")] == [job]
    assert cluster.json("requeue", job)["state"] == "succeeded"


def test_a_node_that_is_drained_hands_its_pod_to_another(cluster, kubernetes):
    job = cluster.submit("paced.yaml", to="k8s")
    cluster.until(job, "running", step=12, timeout=PATIENCE)
    place = kubernetes.pods(job)[0]["spec"]["nodeName"]
    kubernetes.kubectl("drain", place, "--force", "--delete-emptydir-data")
    cluster.gate.touch()
    try:
        cluster.until(job, "succeeded", timeout=PATIENCE)
    finally:
        kubernetes.kubectl("uncordon", place)
    assert trace(cluster.run) == cluster.undisturbed()


def test_cancelled_it_commits_within_its_grace_and_requeued_it_ends_with_the_same_bits(cluster, kubernetes):
    job = cluster.submit("paced.yaml", to="k8s")
    cluster.until(job, "running", step=12, timeout=PATIENCE)
    cluster("cancel", job)
    ended = cluster.until(job, "cancelled", timeout=PATIENCE)
    assert ended["committed"] == ended["step"] > 10
    assert kubernetes.pods(job) == []
    cluster.gate.touch()
    cluster("requeue", job)
    cluster.until(job, "succeeded", timeout=PATIENCE)
    assert trace(cluster.run) == cluster.undisturbed()


def test_a_mistake_in_the_recipe_is_not_tried_again(cluster, kubernetes):
    cluster.write("wrong.yaml", seconds="much")
    job = cluster.submit("wrong.yaml", to="k8s")
    ended = cluster.until(job, "failed", timeout=PATIENCE)
    assert (ended["code"], ended["native_state"]) == (78, "Failed")
    printed = [cluster("logs", job, "--rank", rank) for rank in ("0", "2")]  # of the pod that was the first to fail
    assert any("seconds" in one for one in printed)
    numbers = [pod["metadata"]["labels"][INDEX] for pod in kubernetes.pods(job)]
    assert len(set(numbers)) == len(numbers)


@pytest.fixture(scope="module")
def kinds(kubernetes):
    with extensions(Path(PROGRAMS), kubernetes) as made:
        yield made


@pytest.mark.parametrize("api", ["jobset", "trainjob", "pytorchjob", "hyperpod"])
def test_a_server_with_strict_fields_takes_what_other_projects_define(kinds, monkeypatch, api):
    monkeypatch.setenv("KUBECONFIG", str(kinds.config))
    one = APIS[api]
    kinds.define(definition(one.version, one.kind, one.plural))
    job = submission(kind="kubernetes", api=api, nodes=2, image="train:1", runs="s3://bucket/runs")
    manifest = json.loads(Kubernetes(job.settings).render(job)[-1].body)
    server = Kubectl(None, 30)
    path = f"/apis/{one.version}/namespaces/default/{one.plural}?fieldValidation=Strict"
    assert server("POST", path, manifest)["metadata"]["name"] == job.token
    with pytest.raises(Refused, match=r'unknown field "spec\.nodes"'):
        server("POST", path, {**manifest, "spec": {**manifest["spec"], "nodes": 2}})
