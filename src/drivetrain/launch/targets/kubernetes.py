"""Jobs of a Kubernetes cluster: an Indexed Job, or what JobSet and Kubeflow's two operators make of one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from drivetrain.launch.node import FROM_FILE
from drivetrain.launch.states import UNKNOWN, Seen, State
from drivetrain.launch.submission import FILE, Submission
from drivetrain.launch.targets.container import ENDED_BY_SIGNAL, WORTH_AGAIN, moved, require_container
from drivetrain.launch.targets.kubectl import Kubectl
from drivetrain.launch.targets.recipe import KubernetesTarget, Mount, mebibytes
from drivetrain.launch.targets.remote import Refused, away, require_ended, require_short, with_extras, wrong
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.settings import seconds_of

OURS = {"app.kubernetes.io/managed-by": "drivetrain"}
"""The label that tells our jobs from others."""
JOB = "drivetrain-job"
"""The label with a job's token."""
FOLDER = "/etc/drivetrain"
"""Where a container finds its work."""
NODE = "node"
"""The name of the one group of pods, in APIs that have several; Trainer's own runtimes call it so."""
CONTAINER = "worker"
INDEX = "batch.kubernetes.io/job-completion-index"
RETRIED = (*WORTH_AGAIN, *ENDED_BY_SIGNAL)
_LARGEST = (1 << 20) - 1024  # bytes of a ConfigMap's content
_LONGEST = 131_000  # bytes of one environment variable
_POLL = 2.0  # seconds between two looks


@dataclass(frozen=True)
class Api:
    """One of the APIs that run a group of pods: where its objects are, and how their labels and states are read."""

    version: str
    kind: str
    plural: str
    seen: Callable[[Mapping[str, Any]], Seen]
    group_label: str = JOB
    index_label: str = INDEX
    service: bool = False
    """Whether the pods need a headless service of ours to find each other."""
    child: str = ""
    """The end of the name of the Job behind it, which knows exit codes."""


class Kubernetes:
    """Objects of a job's own name: its work as a ConfigMap, and what runs it, which owns the rest."""

    def __init__(self, settings: KubernetesTarget) -> None:
        self._settings = settings
        self._api = APIS[settings.api]
        self._runs = (self._api.version, self._api.plural)
        self._namespace = settings.namespace or "default"
        self._call: Any = Kubectl(settings.context, settings.timeout)

    def render(self, job: Submission) -> Sequence[Request]:
        """The manifests."""
        require_container(job)
        return [Request(f"{one['kind']} {job.token}", json.dumps(one, indent=2)) for one in self.manifests(job)]

    def manifests(self, job: Submission) -> list[dict[str, Any]]:
        """The work, the service where one is needed, and last what runs the job."""
        named = {"name": job.token, "namespace": self._namespace, "labels": {**OURS, JOB: job.token}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {"clusterIP": "None", "selector": {JOB: job.token}, "publishNotReadyAddresses": True},
        }
        runs = {
            "apiVersion": self._api.version,
            "kind": self._api.kind,
            "metadata": {**named, "labels": {**named["labels"], **self._queue()}, **self._annotations()},
            "spec": self._spec(job),
        }
        return [self._work(job, named), *([service] if self._api.service else []), runs]

    def submit(self, job: Submission) -> str:
        """Create the objects; those that are there already are the job's own, of a request whose answer was lost."""
        *others, runs = self.manifests(job)
        for manifest in others:
            self._create(manifest)
        made = self._create(runs) or self._call("GET", self._path(*self._runs, job.token))
        owner = {key: made[key] for key in ("apiVersion", "kind")} | {
            key: made["metadata"][key] for key in ("name", "uid")
        }
        for manifest in others:  # now they go with the job
            owned = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}
            self._call("PUT", self._path("v1", _plural(manifest), job.token), owned)
        return job.token

    def find(self, job: Submission) -> str | None:
        """The job's token, where there is such a job and it is not on its way out."""
        found = self._get(job.token, *self._runs)
        return job.token if found is not None and "deletionTimestamp" not in found["metadata"] else None

    def look(self, job: Submission, native: str) -> Seen:
        """From the object's status; exit codes of failed jobs from the Job behind it."""
        found = self._get(native, *self._runs)
        if found is None:
            return UNKNOWN
        seen = self._api.seen(found)
        if "deletionTimestamp" in found["metadata"]:
            return replace(seen, state=State.STOPPING, native=f"{seen.native}, being deleted")
        if seen.state is State.FAILED and seen.code is None and self._api.child:
            behind = self._get(f"{native}{self._api.child}", "batch/v1", "jobs")
            told = APIS["job"].seen(behind) if behind is not None else seen
            seen = replace(seen, code=told.code, reason=told.reason or seen.reason)
        return seen

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """What the pods of the rank's node have printed, one after the other."""
        node = 0 if rank is None else rank // self._settings.processes
        read: set[str] = set()
        while True:
            ended = not follow or self.look(job, native).state.final
            for pod in self._pods(native, node):
                name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
                if name not in read and phase not in (None, "Pending"):
                    read.add(name)
                    yield from self._printed(name, follow)
            if ended:
                return
            time.sleep(_POLL)

    def cancel(self, job: Submission, native: str) -> None:
        """Delete it: nothing is left that could start pods again, and those that run have their grace."""
        self._delete(native, *self._runs)

    def requeue(self, job: Submission, native: str) -> str:
        """The same objects anew, once the job has ended: what it printed goes with the old ones."""
        require_ended(job, self.look(job, native))
        old = [(native, one["apiVersion"], _plural(one)) for one in self.manifests(job)]
        for one in reversed(old):
            self._delete(*one)
        patience = time.monotonic() + self._settings.timeout
        while any(self._get(*one) is not None for one in old):
            if time.monotonic() > patience:
                raise away(f"the old job {native} is still being deleted")
            time.sleep(_POLL)
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """Jobs of the namespace with our label."""
        path = self._path(*self._runs, labelSelector=_selector(OURS))
        found = self._call("GET", path)["items"]
        return [Listed(one["metadata"]["name"], one["metadata"]["name"], self._api.seen(one)) for one in found]

    def reachable(self) -> str:
        """The server's version, and that it knows the API that is asked for."""
        version = self._call("GET", "/version")["gitVersion"]
        self._call("GET", self._path(*self._runs, limit="1"))
        return f"Kubernetes {version}, {self._api.kind} in {self._namespace}"

    def _spec(self, job: Submission) -> dict[str, Any]:
        return {"job": self._job, "jobset": self._jobset, "trainjob": self._trainjob, "pytorchjob": self._pytorchjob}[
            self._settings.api
        ](job)

    def _job(self, job: Submission) -> dict[str, Any]:
        """All pods of an attempt end when one does, and each comes again: one more attempt is `nodes` more pods."""
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        return {
            **self._group(job, f"{job.token}-0.{job.token}"),
            "backoffLimit": self._settings.retries * self._settings.nodes,
            "podFailurePolicy": {"rules": [ignored, _NEVER_AGAIN]},
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        }

    def _jobset(self, job: Submission) -> dict[str, Any]:
        """One failed pod starts all of them again, together."""
        group = self._group(job, f"{job.token}-{NODE}-0-0.{job.token}", subdomain=False)
        group |= {"backoffLimit": 0, "podFailurePolicy": {"rules": [_NEVER_AGAIN]}}
        never = {"name": "neveragain", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        return {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": self._settings.retries, "rules": [never]},
            "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": group}}],
        }

    def _trainjob(self, job: Submission) -> dict[str, Any]:
        """The runtime has its own mind about pods and retries; it is given what runs in them, and how many."""
        for name in ("mounts", "walltime", "role", "node_selector", "tolerations", "extras"):
            if getattr(self._settings, name):
                cause = f"{name} is the runtime's with api: trainjob"
                raise wrong(job, cause, "set it there, or take api: jobset")
        require_short(job, len(moved(job).text()), _LONGEST, "a variable, which api: trainjob uses,")
        work = {"name": "DRIVETRAIN_WORK", "valueFrom": {"configMapKeyRef": {"name": job.token, "key": FILE}}}
        return {
            "runtimeRef": {"name": self._settings.runtime},
            "trainer": {
                "image": self._settings.image,
                "command": [self._settings.python or "python", "-m", "drivetrain", "worker"],
                "env": [work, *self._environment(job, f"{job.token}-{NODE}-0-0.{job.token}")],
                "numNodes": self._settings.nodes,
                "resourcesPerNode": self._resources(),
            },
        }

    def _pytorchjob(self, job: Submission) -> dict[str, Any]:
        """Workers without a master, each with a service. It cannot tell exit codes apart: nothing is retried."""
        labels = {"fieldPath": f"metadata.labels['{_REPLICA_INDEX}']"}
        number = {"name": "DRIVETRAIN_NODE", "valueFrom": {"fieldRef": labels}}
        template = self._template(job, f"{job.token}-worker-0", name="pytorch", more=[number])
        del template["spec"]["restartPolicy"]  # the operator's
        nodes = self._settings.nodes
        return {
            "elasticPolicy": {"minReplicas": nodes, "maxReplicas": nodes, "rdzvBackend": "c10d"},
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {"Worker": {"replicas": nodes, "restartPolicy": "Never", "template": template}},
        }

    def _group(self, job: Submission, address: str, *, subdomain: bool = True) -> dict[str, Any]:
        nodes = self._settings.nodes
        template = self._template(job, address)
        if subdomain:
            template["spec"]["subdomain"] = job.token
        return {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "template": template}

    def _template(
        self, job: Submission, address: str, *, name: str = CONTAINER, more: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        settings = self._settings
        shared = {"medium": "Memory", "sizeLimit": f"{settings.shared_memory}Mi"}
        volumes = [
            {"name": "work", "configMap": {"name": job.token, "defaultMode": 0o444}},
            {"name": "shared-memory", "emptyDir": shared},
            *(_volume(job, f"data-{number}", mount) for number, mount in enumerate(settings.mounts)),
        ]
        container = {
            "name": name,
            "image": settings.image,
            "command": [settings.python or "python", "-m", "drivetrain", "worker", f"{FOLDER}/{FILE}"],
            "env": [*more, *self._environment(job, address)],
            "resources": self._resources(),
            "volumeMounts": [
                {"name": "work", "mountPath": FOLDER, "readOnly": True},
                {"name": "shared-memory", "mountPath": "/dev/shm"},
                *(_mounted(f"data-{number}", mount) for number, mount in enumerate(settings.mounts)),
            ],
        }
        optional = {
            "serviceAccountName": settings.role,
            "activeDeadlineSeconds": round(seconds_of(settings.walltime)) if settings.walltime is not None else None,
            "nodeSelector": dict(settings.node_selector),
            "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerations],
        }
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": settings.grace,
            "enableServiceLinks": False,
            "automountServiceAccountToken": settings.role is not None,
            "containers": [container],
            "volumes": volumes,
            **{key: value for key, value in optional.items() if value},
        }
        labels = {**OURS, JOB: job.token}
        return {"metadata": {"labels": labels, **self._annotations()}, "spec": with_extras(job, spec)}

    def _environment(self, job: Submission, address: str) -> list[dict[str, Any]]:
        plain = {"DRIVETRAIN_NODES": str(self._settings.nodes), "DRIVETRAIN_ADDRESS": address}
        secrets = {name: at for name, at in job.work.secrets.items() if not at.startswith(FROM_FILE)}
        return [
            *({"name": name, "value": value} for name, value in plain.items()),
            *({"name": name, "valueFrom": {"secretKeyRef": _key(job, name, at)}} for name, at in secrets.items()),
        ]

    def _resources(self) -> dict[str, Any]:
        settings = self._settings
        memory = {"memory": f"{mebibytes(settings.memory)}Mi"} if settings.memory else {}
        cpus = {"cpu": str(settings.cpus)} if settings.cpus else {}
        name = settings.accelerator or "nvidia.com/gpu"
        accelerators = {name: str(settings.accelerators)} if settings.accelerators else {}
        found = {"requests": {**cpus, **memory, **accelerators}, "limits": {**memory, **accelerators}}
        return {what: amounts for what, amounts in found.items() if amounts}

    def _work(self, job: Submission, named: Mapping[str, Any]) -> dict[str, Any]:
        text = moved(job).text()
        require_short(job, len(text), _LARGEST, "a ConfigMap")
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True, "data": {FILE: text}}

    def _queue(self) -> dict[str, str]:
        return {"kueue.x-k8s.io/queue-name": self._settings.queue} if self._settings.queue else {}

    def _annotations(self) -> dict[str, Any]:
        return {"annotations": dict(self._settings.annotations)} if self._settings.annotations else {}

    def _create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """The object as it was made; None where there is one of this name."""
        path = self._path(manifest["apiVersion"], _plural(manifest), fieldValidation="Strict")
        try:
            return self._call("POST", path, manifest)
        except Refused as refused:
            if refused.word != "AlreadyExists":
                raise
            return None

    def _get(self, name: str, version: str, plural: str) -> dict[str, Any] | None:
        try:
            return self._call("GET", self._path(version, plural, name))
        except Refused as refused:
            if refused.word != "NotFound":
                raise
            return None

    def _delete(self, name: str, version: str, plural: str) -> None:
        """With its pods, which it waits for."""
        try:
            self._call("DELETE", self._path(version, plural, name, propagationPolicy="Foreground"))
        except Refused as refused:
            if refused.word != "NotFound":
                raise

    def _pods(self, native: str, node: int) -> list[dict[str, Any]]:
        """The pods of one node, oldest first."""
        wanted = _selector({self._api.group_label: native, self._api.index_label: str(node)})
        found = self._call("GET", self._path("v1", "pods", labelSelector=wanted))["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def _printed(self, pod: str, follow: bool) -> Iterator[str]:
        more = {"follow": "true"} if follow else {}
        path = self._path("v1", "pods", f"{pod}/log", **more)
        try:
            yield from self._call.lines(path)
        except Refused as refused:
            if refused.word not in ("NotFound", "BadRequest"):  # gone meanwhile, or its container is not there yet
                raise

    def _path(self, version: str, plural: str, name: str = "", **query: str) -> str:
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = f"{root}/namespaces/{self._namespace}/{plural}{f'/{name}' if name else ''}"
        return f"{path}?{urlencode(query)}" if query else path


def _seen_job(found: Mapping[str, Any]) -> Seen:
    status, spec = found.get("status", {}), found.get("spec", {})
    failed, nodes = status.get("failed", 0), spec.get("parallelism") or 1
    return _seen(status, ready=status.get("ready", 0), attempt=-(-failed // nodes), names=("Complete", "Failed"))


def _seen_jobset(found: Mapping[str, Any]) -> Seen:
    status = found.get("status", {})
    ready = sum(one.get("ready", 0) for one in status.get("replicatedJobsStatus", ()))
    return _seen(status, ready=ready, attempt=status.get("restarts", 0), names=("Completed", "Failed"))


def _seen_trainjob(found: Mapping[str, Any]) -> Seen:
    status = found.get("status", {})
    ready = sum(one.get("ready", 0) for one in status.get("jobsStatus", ()))
    return _seen(status, ready=ready, attempt=0, names=("Complete", "Failed"))


def _seen_pytorchjob(found: Mapping[str, Any]) -> Seen:
    status = found.get("status", {})
    running = any(one["type"] == "Running" and one["status"] == "True" for one in status.get("conditions", ()))
    return _seen(status, ready=int(running), attempt=0, names=("Succeeded", "Failed"))


def _seen(status: Mapping[str, Any], *, ready: int, attempt: int, names: tuple[str, str]) -> Seen:
    """What the conditions say that are true; before the first one of an end, what the pods do."""
    true = {one["type"]: one for one in status.get("conditions", ()) if one["status"] == "True"}
    done, failed = names
    if end := true.get(done) or true.get(failed):
        said = f"{end.get('reason', '')}: {end.get('message', '')}".strip(": ")
        state = State.SUCCEEDED if done in true else State.FAILED
        code = re.search(r"exit code (\d+)", said) if state is State.FAILED else None
        number = int(code.group(1)) if code else None
        return Seen(state=state, native=end["type"], attempt=attempt, reason=said, code=number, began=_start(status))
    waits = State.REQUEUED if attempt else State.PENDING
    if "Suspended" in true:
        return Seen(state=waits, native="Suspended", attempt=attempt, reason=true["Suspended"].get("message", ""))
    if ready:
        return Seen(state=State.RUNNING, native="running", attempt=attempt, began=_start(status))
    return Seen(state=waits, native="waits for its pods", attempt=attempt)


def _start(status: Mapping[str, Any]) -> float | None:
    text = status.get("startTime")
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


_NEVER_AGAIN = {
    "action": "FailJob",
    "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [*RETRIED]},
}
_REPLICA_INDEX = "training.kubeflow.org/replica-index"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"
APIS: Mapping[str, Api] = {
    "job": Api("batch/v1", "Job", "jobs", _seen_job, service=True),
    "jobset": Api("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", _seen_jobset, child=f"-{NODE}-0"),
    "trainjob": Api(
        "trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", _seen_trainjob, _JOBSET, child=f"-{NODE}-0"
    ),
    "pytorchjob": Api("kubeflow.org/v1", "PyTorchJob", "pytorchjobs", _seen_pytorchjob, index_label=_REPLICA_INDEX),
}


def _plural(manifest: Mapping[str, Any]) -> str:
    return f"{manifest['kind'].lower()}s"


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _key(job: Submission, name: str, reference: str) -> dict[str, str]:
    secret, _, key = reference.partition("/")
    if not secret or not key:
        cause = f"secrets.{name} is SECRET/KEY or {FROM_FILE}PATH (got {reference!r})"
        raise wrong(job, cause, "create it by `kubectl create secret generic`")
    return {"name": secret, "key": key}


def _volume(job: Submission, name: str, mount: Mount) -> dict[str, Any]:
    """`pvc:CLAIM[/FOLDER]` is a claim, anything that begins with / a folder of the machine."""
    kind, _, rest = mount.source.partition(":")
    if kind == "pvc" and rest:
        return {"name": name, "persistentVolumeClaim": {"claimName": rest.partition("/")[0]}}
    if mount.source.startswith("/"):
        return {"name": name, "hostPath": {"path": mount.source}}
    cause = f"mounts: {mount.source!r} is neither pvc:CLAIM/FOLDER nor a path of the machine"
    raise wrong(job, cause, "make a claim for it; data in an object store is read by its URL")


def _mounted(name: str, mount: Mount) -> dict[str, Any]:
    folder = mount.source.partition("/")[2] if mount.source.startswith("pvc:") else ""
    inside = {"subPath": folder} if folder else {}
    return {"name": name, "mountPath": mount.path, "readOnly": mount.read_only, **inside}
