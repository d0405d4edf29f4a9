"""Jobs of a Kubernetes cluster: manifests, and their life on a stand-in for its server that answers as it does."""

import json
import os
import shutil
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from drivetrain.launch.states import UNKNOWN, State
from drivetrain.launch.submission import NodeWork
from drivetrain.launch.targets.kubectl import failure
from drivetrain.launch.targets.kubernetes import Kubernetes
from drivetrain.launch.targets.kubernetes_apis import APIS
from drivetrain.launch.targets.kubernetes_manifests import RETRIED
from drivetrain.launch.targets.kubernetes_objects import KubernetesObjects
from drivetrain.launch.targets.remote import Refused
from drivetrain.spec.exits import Exit, Failure
from kubernetes_lab.definitions import SPECS, unfitting
from submissions import hostile, submission

TARGET = {
    "kind": "kubernetes",
    "nodes": 2,
    "processes": 2,
    "cpus": 8,
    "memory": "32G",
    "accelerators": 2,
    "image": "registry.example/train:1",
    "namespace": "research",
    "runs": "s3://bucket/runs",
    "folder": "/app",
}
EVERY = sorted(APIS)


def manifests(**settings):
    job = submission(**TARGET | settings)
    target = Kubernetes(job.settings)
    return job, {json.loads(one.body)["kind"]: json.loads(one.body) for one in target.render(job)}


def template_of(kind, manifest):
    spec = manifest["spec"]
    if kind == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    if kind == "PyTorchJob":
        spec = spec["pytorchReplicaSpecs"]["Worker"]
    if kind == "HyperPodPyTorchJob":
        spec = spec["replicaSpecs"][0]
    return spec["template"]


def container_of(kind, manifest):
    return manifest["spec"]["trainer"] if kind == "TrainJob" else template_of(kind, manifest)["spec"]["containers"][0]


@pytest.mark.parametrize("api", EVERY)
def test_every_pod_is_told_its_work_how_many_there_are_and_where_the_first_is(api):
    job, made = manifests(api=api, secrets={"KEY": "keys/wandb", "FILE": "file:/run/key"})
    kind = APIS[api].kind
    container = container_of(kind, made[kind])
    environment = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert environment["DRIVETRAIN_NODES"] == "2"
    first = {
        "Job": f"{job.token}-0.{job.token}",
        "PyTorchJob": f"{job.token}-worker-0",
        "HyperPodPyTorchJob": None,  # its agent tells
    }
    assert environment.get("DRIVETRAIN_ADDRESS") == first.get(kind, f"{job.token}-node-0-0.{job.token}")
    assert environment["KEY"] == {"secretKeyRef": {"name": "keys", "key": "wandb"}}
    assert "FILE" not in environment
    assert " python -m drivetrain worker" in f" {' '.join(container['command'])}"
    work = NodeWork.from_json(json.loads(made["ConfigMap"]["data"]["work.json"]))
    assert work.text() == replace(job.work, cwd="/app").text()
    assert made[kind]["metadata"]["name"] == made["ConfigMap"]["metadata"]["name"] == job.token
    resources = container.get("resources") or container["resourcesPerNode"]
    assert resources["limits"] == {"memory": "32768Mi", "nvidia.com/gpu": "2"}


def test_only_ends_that_are_worth_it_are_tried_again():
    _, made = manifests(retries=3)
    spec = made["Job"]["spec"]
    ignored, never = spec["podFailurePolicy"]["rules"]
    assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    again = never["onExitCodes"]["values"]
    assert (never["action"], never["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    assert set(again) == {int(code) for code in Exit if code.retryable} | {137, 143}
    assert tuple(again) == RETRIED
    assert spec["backoffLimit"] == 6
    _, made = manifests(retries=3, api="jobset")
    assert made["JobSet"]["spec"]["failurePolicy"]["maxRestarts"] == 3
    _, made = manifests(api="pytorchjob")
    assert made["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("api", ["job", "jobset", "pytorchjob", "hyperpod"])
def test_hostile_values_travel_as_data(api):
    environment = hostile()
    job, made = manifests(api=api, environment=environment)
    work = made.pop("ConfigMap")
    assert NodeWork.from_json(json.loads(work["data"]["work.json"])).environment == environment
    _, plain = manifests(api=api)
    del plain["ConfigMap"]
    name = next(iter(plain.values()))["metadata"]["name"]
    assert json.dumps(made).replace(job.token, name) == json.dumps(plain)


def test_what_pods_are_given_beside():
    more = {
        "mounts": [
            {"source": "pvc:corpus/text", "path": "/data"},
            {"source": "/scratch", "path": "/scratch", "read_only": False},
        ],
        "role": "trainer",
        "walltime": "2h",
        "queue": "team",
        "grace": 60,
        "tolerations": ["nvidia.com/gpu"],
        "node_selector": {"zone": "a"},
        "annotations": {"x/y": "z"},
        "extras": {"priorityClassName": "high"},
    }
    _, made = manifests(**more)
    spec = made["Job"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["volumeMounts"][2:] == [
        {"name": "data-0", "mountPath": "/data", "readOnly": True, "subPath": "text"},
        {"name": "data-1", "mountPath": "/scratch", "readOnly": False},
    ]
    assert spec["volumes"][2]["persistentVolumeClaim"] == {"claimName": "corpus"}
    assert (spec["activeDeadlineSeconds"], spec["terminationGracePeriodSeconds"]) == (7200, 60)
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("trainer", "high")
    assert made["Job"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert made["Job"]["metadata"]["annotations"] == {"x/y": "z"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image": None}, "image is missing"),
        ({"runs": "/here"}, "goes with the container"),
        ({"code": {"kind": "commit"}}, "cannot be brought"),
        ({"secrets": {"KEY": "keys"}}, "SECRET/KEY"),
        ({"mounts": [{"source": "nfs", "path": "/data"}]}, "neither pvc"),
        ({"extras": {"containers": 1}}, "follows from the job's description"),
        ({"api": "trainjob", "walltime": "1h"}, "walltime is the runtime's"),
        ({"api": "hyperpod", "retries": 7}, "retries means nothing with api: hyperpod"),
        ({"api": "trainjob", "environment": {"VALUE": "x" * 200_000}}, "a variable"),
        ({"environment": {"VALUE": "x" * 2_000_000}}, "a ConfigMap takes"),
    ],
)
def test_what_kubernetes_would_refuse_is_told_before_it_is_asked(changed, said):
    with pytest.raises(Failure, match=said) as refused:
        manifests(**changed)
    assert refused.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_core_manifests_are_those_of_the_published_schemas(version):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    _, made = manifests(role="trainer", tolerations=["gpu"], mounts=[{"source": "pvc:x/y", "path": "/x"}])
    for manifest in made.values():
        validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("api", ["jobset", "trainjob"])
def test_manifests_of_operators_have_only_fields_that_their_models_know(api):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    _, made = manifests(api=api, secrets={"KEY": "keys/wandb"}, queue="team", annotations={"x/y": "z"})
    model = {"jobset": models.JobsetV1alpha2JobSet, "trainjob": models.TrainerV1alpha1TrainJob}[api]
    manifest = made[APIS[api].kind]

    def kept(given, known):
        """Unknown fields are left out by `from_dict`; what a model adds by itself is no matter."""
        if isinstance(given, dict):
            return all(name in known and kept(value, known[name]) for name, value in given.items())
        return all(map(kept, given, known)) if isinstance(given, list) else given == known

    assert kept(manifest, model.from_dict(manifest).to_dict())


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_manifests_of_operators_have_only_what_their_definitions_have(kind):
    (api,) = (name for name, one in APIS.items() if one.kind == kind)
    walltime = {"walltime": "2h"} if api != "trainjob" else {}
    _, made = manifests(api=api, secrets={"KEY": "keys/wandb"}, queue="team", annotations={"x/y": "z"}, **walltime)
    assert not list(unfitting(made[kind]["spec"], SPECS[kind]))
    mistaken = {**made[kind]["spec"], "nodes": 2}
    assert list(unfitting(mistaken, SPECS[kind])) == ["spec.nodes"]


@pytest.mark.parametrize("api", ["job", "jobset", "pytorchjob", "hyperpod"])
def test_pods_of_every_kind_are_those_of_the_published_schema(api):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    _, made = manifests(api=api, role="trainer", tolerations=["gpu"], mounts=[{"source": "pvc:x/y", "path": "/x"}])
    template = template_of(APIS[api].kind, made[APIS[api].kind])
    validate.validate({"apiVersion": "v1", "kind": "PodTemplate", "template": template}, "1.31", strict=True)


def test_hyperpods_agent_starts_the_worker_under_its_own_number_and_asks_it_to_stop():
    _, made = manifests(api="hyperpod", walltime="2h", grace=60)
    spec = made["HyperPodPyTorchJob"]["spec"]
    command = container_of("HyperPodPyTorchJob", made["HyperPodPyTorchJob"])["command"]
    assert command[:6] == [
        *("hyperpodrun", "--nnodes=2", "--nproc-per-node=1"),
        *("--shutdown-signal=SIGTERM", "--shutdown-timeout=60", "--no-python"),
    ]
    shell = [*command[6:9], *("sh", "python3", "-c", "import os; print(os.environ['DRIVETRAIN_NODE'])")]
    said = subprocess.run(shell, env={**os.environ, "GROUP_RANK": "1"}, capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"
    pods = spec["replicaSpecs"][0]["template"]["spec"]
    assert "activeDeadlineSeconds" not in pods
    assert (spec["runPolicy"]["activeDeadlineSeconds"], spec["runPolicy"]["jobMaxRetryCount"]) == (7200, 0)


class Cluster:
    """A server's objects in memory. Its refusals are the server's, and its statuses are set by the test."""

    def __init__(self):
        self.objects = {}
        self.requests = []
        self.printed = {}

    def __call__(self, method, path, body=None):
        status, answer = self.answer(method, path, body)
        if status >= 400:
            raise failure(f"Error from server ({answer['reason']}): {answer['message']}")
        return answer

    def lines(self, path):
        return iter(self.printed[urlsplit(path).path.split("/")[-2]])

    def answer(self, method, path, body):
        place = urlsplit(path)
        self.requests.append((method, place.path.rpartition("/namespaces/")[2], parse_qs(place.query)))
        name = place.path if method != "POST" else f"{place.path}/{body['metadata']['name']}"
        if place.path == "/version":
            return 200, {"gitVersion": "v1.36.4"}
        if method == "POST" and name in self.objects:
            return 409, self._status("AlreadyExists", f"{name} already exists")
        if (
            method == "PUT"
            and body["metadata"].get("resourceVersion") != self.objects[name]["metadata"]["resourceVersion"]
        ):
            return 422, self._status("Invalid", "metadata.resourceVersion: must be specified for an update")
        if method in ("POST", "PUT"):
            stamp = {"uid": f"uid-{len(self.requests)}", "creationTimestamp": "2026-11-21T10:00:00Z"}
            version = {"resourceVersion": str(len(self.requests))}
            self.objects[name] = {**body, "metadata": {**stamp, **body["metadata"], **version}}
            return 201, self.objects[name]
        if "labelSelector" in place.query or "limit" in place.query:
            (selector,) = parse_qs(place.query).get("labelSelector", [""])
            wanted = dict(one.split("=") for one in selector.split(",") if one)
            below = [one for key, one in self.objects.items() if key.startswith(f"{name}/")]
            fitting = [one for one in below if wanted.items() <= one["metadata"].get("labels", {}).items()]
            return 200, {"items": fitting}
        if name not in self.objects:
            return 404, self._status("NotFound", f"{name} not found")
        return 200, self.objects.pop(name) if method == "DELETE" else self.objects[name]

    def _status(self, reason, message):
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}


@pytest.fixture
def cluster():
    return Cluster()


def target_on(cluster, **settings):
    job = submission(**TARGET | settings)
    target = Kubernetes(job.settings)
    target._objects = KubernetesObjects(cluster, "default")
    return target, job


def object_of(cluster, target, job):
    return cluster.objects[target._objects._path(target._runs, job.token)]


@pytest.mark.parametrize("api", EVERY)
def test_a_job_is_sent_once_found_by_its_token_deleted_and_sent_again(cluster, api):
    target, job = target_on(cluster, api=api)
    assert target.find(job) is None
    assert target.submit(job) == target.find(job) == job.token
    count = len(cluster.objects)
    owned = [one for one in cluster.objects.values() if "ownerReferences" in one["metadata"]]
    assert len(owned) == count - 1
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in owned} == {
        object_of(cluster, target, job)["metadata"]["uid"]
    }
    target.submit(job)
    assert len(cluster.objects) == count
    assert [one.token for one in target.listed()] == [job.token]
    with pytest.raises(Failure, match="is pending"):
        target.requeue(job, job.token)
    target.cancel(job, job.token)
    target.cancel(job, job.token)
    assert target.look(job, job.token) == UNKNOWN
    assert target.requeue(job, job.token) == target.find(job)
    assert {("POST", "Strict")} == {
        (method, query["fieldValidation"][0]) for method, _, query in cluster.requests if "fieldValidation" in query
    }
    deletes = [query for method, _, query in cluster.requests if method == "DELETE"]
    assert all(query == {"propagationPolicy": ["Foreground"]} for query in deletes)
    assert "v1.36.4" in target.reachable()


def ended(kind, reason="", message=""):
    return [{"type": kind, "status": "True", "reason": reason, "message": message}]


EXITED = "Container worker for pod research/x failed with exit code 78 matching FailJob rule at index 1"


@pytest.mark.parametrize(
    ("api", "status", "state", "attempt", "code"),
    [
        ("job", {}, State.PENDING, 0, None),
        ("job", {"active": 2, "ready": 0}, State.PENDING, 0, None),
        ("job", {"active": 2, "ready": 2, "startTime": "2026-11-21T10:00:00Z"}, State.RUNNING, 0, None),
        ("job", {"active": 2, "ready": 0, "failed": 2}, State.REQUEUED, 1, None),
        ("job", {"active": 2, "ready": 2, "failed": 3}, State.RUNNING, 2, None),
        ("job", {"conditions": ended("Suspended")}, State.PENDING, 0, None),
        ("job", {"conditions": ended("Complete")}, State.SUCCEEDED, 0, None),
        ("job", {"conditions": ended("Failed", "PodFailurePolicy", EXITED)}, State.FAILED, 0, 78),
        ("job", {"conditions": ended("Failed", "BackoffLimitExceeded"), "failed": 42}, State.FAILED, 21, None),
        ("jobset", {"replicatedJobsStatus": [{"name": "node", "ready": 1}]}, State.RUNNING, 0, None),
        ("jobset", {"restarts": 2}, State.REQUEUED, 2, None),
        ("jobset", {"conditions": ended("Completed")}, State.SUCCEEDED, 0, None),
        ("trainjob", {"jobsStatus": [{"name": "node", "ready": 1}]}, State.RUNNING, 0, None),
        ("trainjob", {"conditions": ended("Complete")}, State.SUCCEEDED, 0, None),
        ("pytorchjob", {"conditions": ended("Created")}, State.PENDING, 0, None),
        ("pytorchjob", {"conditions": ended("Running")}, State.RUNNING, 0, None),
        ("pytorchjob", {"conditions": ended("Failed", "PyTorchJobFailed")}, State.FAILED, 0, None),
        ("hyperpod", {"conditions": None}, State.PENDING, 0, None),
        ("hyperpod", {"conditions": ended("Created")}, State.PENDING, 0, None),
        ("hyperpod", {"conditions": ended("Running"), "restartCount": 1}, State.RUNNING, 1, None),
        ("hyperpod", {"conditions": ended("Completed")}, State.SUCCEEDED, 0, None),
    ],
)
def test_what_kubernetes_says_of_a_job(cluster, api, status, state, attempt, code):
    target, job = target_on(cluster, api=api)
    target.submit(job)
    object_of(cluster, target, job)["status"] = status
    seen = target.look(job, job.token)
    assert (seen.state, seen.attempt, seen.code) == (state, attempt, code)


@pytest.mark.parametrize("api", ["jobset", "trainjob"])
def test_why_a_group_failed_is_asked_of_the_job_behind_it(cluster, api):
    target, job = target_on(cluster, api=api)
    target.submit(job)
    object_of(cluster, target, job)["status"] = {"conditions": ended("Failed", "FailedJobs")}
    assert target.look(job, job.token).code is None
    behind = {"metadata": {"name": f"{job.token}-node-0"}, "status": {"conditions": ended("Failed", "x", EXITED)}}
    cluster("POST", target._objects._path(("batch/v1", "jobs")), behind)
    assert target.look(job, job.token).code == 78


def test_a_job_that_is_being_deleted_is_stopping_and_not_found(cluster):
    target, job = target_on(cluster)
    target.submit(job)
    object_of(cluster, target, job)["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    assert target.find(job) is None
    assert target.look(job, job.token).state is State.STOPPING


def test_what_a_job_was_told_is_read_back_from_the_cluster(cluster):
    target, job = target_on(cluster)
    assert target.work(target.submit(job)).text() == replace(job.work, cwd="/app").text()
    with pytest.raises(Failure, match="nothing is kept of other"):
        target.work("other")


def test_logs_are_those_of_all_pods_of_the_ranks_node_in_their_order(cluster):
    target, job = target_on(cluster)
    target.submit(job)
    object_of(cluster, target, job)["status"] = {"conditions": ended("Complete")}
    pods = (("second", "1", "12:00", "Running"), ("first", "1", "11:00", "Failed"), ("other", "0", "11:00", "Running"))
    for name, index, at, phase in (*pods, ("third", "1", "13:00", "Pending")):
        labels = {"drivetrain-job": job.token, "batch.kubernetes.io/job-completion-index": index}
        metadata = {"name": name, "labels": labels, "creationTimestamp": f"2026-11-21T{at}:00Z"}
        cluster("POST", target._objects._path(("v1", "pods")), {"metadata": metadata, "status": {"phase": phase}})
        cluster.printed[name] = [f"{name} 1", f"{name} 2"]
    assert list(target.logs(job, job.token, 3, follow=True)) == ["first 1", "first 2", "second 1", "second 2"]


@pytest.mark.parametrize(
    ("said", "code", "word"),
    [
        ("Error from server (NotFound): jobs x not found", Exit.BAD_RECIPE, "NotFound"),
        ('Error from server (BadRequest): strict decoding error: unknown field "x"', Exit.BAD_RECIPE, "BadRequest"),
        ("Error from server (ServiceUnavailable): later", Exit.PEER_UNAVAILABLE, None),
        ("Error from server (Conflict): the object has been modified", Exit.PEER_UNAVAILABLE, None),
        ("Unable to connect to the server: dial tcp: i/o timeout", Exit.PEER_UNAVAILABLE, None),
        ("The connection to the server 127.0.0.1:9 was refused - did you ...", Exit.PEER_UNAVAILABLE, None),
        ("error: You must be logged in to the server (Unauthorized)", Exit.INPUT_MISSING, None),
        ('error: context "x" does not exist', Exit.INPUT_MISSING, None),
    ],
)
def test_what_kubectl_complains_of(said, code, word):
    failed = failure(said)
    assert failed.outcome.code is code
    assert getattr(failed, "word", None) == word


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_itself_brings_requests_to_a_server(cluster, tmp_path, monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self):
            text = b""
            while self.headers.get("transfer-encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
                text += self.rfile.read(size)
                self.rfile.readline()
            body = json.loads(text) if text else None
            if self.path.split("?")[0].endswith("/log"):
                status, text = 200, "one\ntwo \u2713\n"
            else:
                status, answer = cluster.answer(self.command, self.path, body)
                text = json.dumps(answer)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "lab", "context": {"cluster": "here", "user": "me"}}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [place], "contexts": [context]}
    (tmp_path / "config").write_text(json.dumps({**config, "users": [{"name": "me", "user": {}}]}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    job = submission(**TARGET, context="lab", environment={"VALUE": "$(touch pwned)\n'\"✓"})
    target = Kubernetes(job.settings)
    try:
        assert target.find(job) is None
        assert target.submit(job) == target.find(job) == target.submit(job)
        sent = json.loads(cluster.objects[target._objects._path(("v1", "configmaps"), job.token)]["data"]["work.json"])
        assert sent["environment"] == {"VALUE": "$(touch pwned)\n'\"✓"}
        assert list(target._objects.printed("pod", follow=True)) == ["one", "two ✓"]
        target.cancel(job, job.token)
        assert target.look(job, job.token) == UNKNOWN
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(Failure) as away:
        target.find(job)
    assert away.value.outcome.code is Exit.PEER_UNAVAILABLE
    assert not isinstance(away.value, Refused)
