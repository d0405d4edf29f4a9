"""What Kubernetes is sent: a ConfigMap with the work, and the object that runs it, by whichever API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.launch.node import FROM_FILE
from drivetrain.launch.submission import FILE, Submission
from drivetrain.launch.targets.container import ENDED_BY_SIGNAL, WORTH_AGAIN, moved
from drivetrain.launch.targets.kubernetes_apis import APIS, JOB, NODE, REPLICA_INDEX
from drivetrain.launch.targets.kubernetes_settings import KubernetesTarget
from drivetrain.launch.targets.recipe import Mount, ResourceSpec, mebibytes
from drivetrain.launch.targets.remote import require_short, with_extras, wrong
from drivetrain.spec.settings import seconds_of

OURS = {"app.kubernetes.io/managed-by": "drivetrain"}
"""The label that tells our jobs from others."""
RETRIED = (*WORTH_AGAIN, *ENDED_BY_SIGNAL)
"""Exit codes of a container after which its pod comes again."""
_FOLDER = "/etc/drivetrain"  # where a container finds its work
_CONTAINER = "worker"
_AGENT = 8080  # where HyperPod's agent listens
_AS_THE_AGENT_SAYS = 'DRIVETRAIN_NODE=$GROUP_RANK exec "$@"'  # it numbers the pods once all are there
_LARGEST = (1 << 20) - 1024  # bytes of a ConfigMap's content
_RETRIES = ResourceSpec.retries  # what it is where nobody sets it
_LONGEST = 131_000  # bytes of one environment variable


class Manifests:
    """The objects of one target's jobs, under each job's token as their name. Nobody is asked anything."""

    def __init__(self, settings: KubernetesTarget, namespace: str) -> None:
        self._settings = settings
        self._namespace = namespace

    def of(self, job: Submission) -> list[dict[str, Any]]:
        """The work, the service where one is needed, and last what runs the job."""
        api = APIS[self._settings.api]
        if not api.retries and self._settings.retries != _RETRIES:
            cause = f"retries means nothing with api: {self._settings.api}"
            raise wrong(job, cause, "leave it out, or take api: job or jobset")
        named = {"name": job.token, "namespace": self._namespace, "labels": {**OURS, JOB: job.token}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {"clusterIP": "None", "selector": {JOB: job.token}, "publishNotReadyAddresses": True},
        }
        labels = dict(named["labels"])
        if self._settings.queue:
            labels["kueue.x-k8s.io/queue-name"] = self._settings.queue
        specs = {
            "job": self._job,
            "jobset": self._jobset,
            "trainjob": self._trainjob,
            "pytorchjob": self._pytorchjob,
            "hyperpod": self._hyperpod,
        }
        runs = {
            "apiVersion": api.version,
            "kind": api.kind,
            "metadata": {**named, "labels": labels, **self._annotations()},
            "spec": specs[self._settings.api](job),
        }
        if not api.service:
            return [self._work(job, named), runs]
        return [self._work(job, named), service, runs]

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
        labels = {"fieldPath": f"metadata.labels['{REPLICA_INDEX}']"}
        number = {"name": "DRIVETRAIN_NODE", "valueFrom": {"fieldRef": labels}}
        template = self._template(job, f"{job.token}-worker-0", name="pytorch", more=[number])
        del template["spec"]["restartPolicy"]  # the operator's
        nodes = self._settings.nodes
        return {
            "elasticPolicy": {"minReplicas": nodes, "maxReplicas": nodes, "rdzvBackend": "c10d"},
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {"Worker": {"replicas": nodes, "restartPolicy": "Never", "template": template}},
        }

    def _hyperpod(self, job: Submission) -> dict[str, Any]:
        """Pods in which HyperPod's agent starts the worker and tells it where the first one is.

        It takes no notice of exit codes: nothing is retried. Its operator removes what has ended unless it is told to
        wait, and the agent ends what it started at once unless it is told a signal.
        """
        nodes, settings = self._settings.nodes, self._settings
        more = [{"name": "NNODES", "value": str(nodes)}]
        template = self._template(job, None, name="pytorch", more=more)
        spec = template["spec"]
        for theirs in ("restartPolicy", "activeDeadlineSeconds"):
            spec.pop(theirs, None)
        (container,) = spec["containers"]
        signal = ["--shutdown-signal=SIGTERM", f"--shutdown-timeout={settings.grace}"]
        agent = ["hyperpodrun", f"--nnodes={nodes}", "--nproc-per-node=1", *signal, "--no-python"]
        container["command"] = [*agent, "sh", "-c", _AS_THE_AGENT_SAYS, "sh", *container["command"]]
        container["ports"] = [{"containerPort": _AGENT}]
        policy = {"cleanPodPolicy": "None", "jobMaxRetryCount": 0, "ttlSecondsAfterFinished": -1}
        if settings.walltime is not None:
            policy["activeDeadlineSeconds"] = round(seconds_of(settings.walltime))
        return {
            "nprocPerNode": "1",
            "replicaSpecs": [{"name": NODE, "replicas": nodes, "template": template}],
            "runPolicy": policy,
        }

    def _group(self, job: Submission, address: str, *, subdomain: bool = True) -> dict[str, Any]:
        nodes = self._settings.nodes
        template = self._template(job, address)
        if subdomain:
            template["spec"]["subdomain"] = job.token
        return {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "template": template}

    def _template(
        self, job: Submission, address: str | None, *, name: str = _CONTAINER, more: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        settings = self._settings
        shared = {"medium": "Memory", "sizeLimit": f"{settings.shared_memory}Mi"}
        volumes = [
            {"name": "work", "configMap": {"name": job.token, "defaultMode": 0o444}},
            {"name": "shared-memory", "emptyDir": shared},
        ]
        mounts = [
            {"name": "work", "mountPath": _FOLDER, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ]
        for number, mount in enumerate(settings.mounts):
            volumes.append(_volume(job, f"data-{number}", mount))
            mounts.append(_mounted(f"data-{number}", mount))
        container = {
            "name": name,
            "image": settings.image,
            "command": [settings.python or "python", "-m", "drivetrain", "worker", f"{_FOLDER}/{FILE}"],
            "env": [*more, *self._environment(job, address)],
            "resources": self._resources(),
            "volumeMounts": mounts,
        }
        deadline = None
        if settings.walltime is not None:
            deadline = round(seconds_of(settings.walltime))
        optional = {
            "serviceAccountName": settings.role,
            "activeDeadlineSeconds": deadline,
            "nodeSelector": dict(settings.node_selector),
            "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerations],
        }
        spec = {
            # A pod failure policy takes no other.
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

    def _environment(self, job: Submission, address: str | None) -> list[dict[str, Any]]:
        variables: list[dict[str, Any]] = [{"name": "DRIVETRAIN_NODES", "value": str(self._settings.nodes)}]
        if address:
            variables.append({"name": "DRIVETRAIN_ADDRESS", "value": address})
        # Only where a secret lies is said here. One that is a file is read by the worker itself.
        for name, reference in job.work.secrets.items():
            if not reference.startswith(FROM_FILE):
                variables.append({"name": name, "valueFrom": {"secretKeyRef": _key(job, name, reference)}})
        return variables

    def _resources(self) -> dict[str, Any]:
        settings = self._settings
        limits, cpus = {}, {}
        if settings.memory:
            limits["memory"] = f"{mebibytes(settings.memory)}Mi"
        if settings.accelerators:
            limits[settings.accelerator or "nvidia.com/gpu"] = str(settings.accelerators)
        # No limit of CPUs: a pod that reaches it is throttled, and training with it.
        if settings.cpus:
            cpus["cpu"] = str(settings.cpus)
        found = {"requests": {**cpus, **limits}, "limits": limits}
        return {what: amounts for what, amounts in found.items() if amounts}

    def _work(self, job: Submission, named: Mapping[str, Any]) -> dict[str, Any]:
        text = moved(job).text()
        require_short(job, len(text), _LARGEST, "a ConfigMap")
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True, "data": {FILE: text}}

    def _annotations(self) -> dict[str, Any]:
        if not self._settings.annotations:
            return {}
        return {"annotations": dict(self._settings.annotations)}


_NEVER_AGAIN = {
    "action": "FailJob",
    "onExitCodes": {"containerName": _CONTAINER, "operator": "NotIn", "values": [*RETRIED]},
}


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
    mounted = {"name": name, "mountPath": mount.path, "readOnly": mount.read_only}
    if mount.source.startswith("pvc:"):
        folder = mount.source.partition("/")[2]
        if folder:
            mounted["subPath"] = folder
    return mounted
