"""Jobs of a Kubernetes cluster: an Indexed Job, or what JobSet, Kubeflow's operators or HyperPod's make of one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlencode

from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import FILE, NodeWork, Submission
from drivetrain.launch.targets.container import require_container
from drivetrain.launch.targets.kubectl import Kubectl
from drivetrain.launch.targets.kubernetes_apis import APIS
from drivetrain.launch.targets.kubernetes_manifests import OURS, Manifests
from drivetrain.launch.targets.recipe import Container, Text, Word
from drivetrain.launch.targets.remote import Refused, away, require_ended
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.settings import Count, nothing

_POLL = 2.0  # seconds between two looks


@dataclass(frozen=True, kw_only=True)
class KubernetesTarget(Container):
    """A Kubernetes cluster that kubectl reaches."""

    unused: ClassVar[tuple[str, ...]] = ("fruitless",)
    factory: ClassVar[str] = "drivetrain.launch.targets.kubernetes:Kubernetes"
    kind: Annotated[Literal["kubernetes"], nothing("jobs in pods")] = "kubernetes"
    api: Annotated[
        Literal["job", "jobset", "trainjob", "pytorchjob", "hyperpod"],
        nothing(
            "what runs the pods: Kubernetes itself, JobSet, Kubeflow's Trainer 2, its older operator, or HyperPod's"
        ),
    ] = "job"
    context: Annotated[Text | None, nothing("of your kubeconfig; null: the current one")] = None
    grace: Annotated[Count, nothing("seconds from SIGTERM to SIGKILL: a commit must fit")] = 120
    runtime: Annotated[Word, nothing("ClusterTrainingRuntime of a TrainJob")] = "torch-distributed"
    shared_memory: Annotated[Count, nothing("MiB of /dev/shm, through which data workers hand over batches")] = 1024
    node_selector: Annotated[Mapping[Text, Text], nothing("labels that machines must have")] = field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Word, ...], nothing("keys of taints that do not keep its pods away")] = ()
    annotations: Annotated[Mapping[Text, Text], nothing("of the job and its pods")] = field(default_factory=dict)


class Kubernetes:
    """Objects of a job's own name: its work as a ConfigMap, and what runs it, which owns the rest."""

    def __init__(self, settings: KubernetesTarget) -> None:
        self._settings = settings
        self._api = APIS[settings.api]
        self._runs = (self._api.version, self._api.plural)
        self._namespace = settings.namespace or "default"
        self._manifests = Manifests(settings, self._namespace)
        self._call: Any = Kubectl(settings.context, settings.timeout)

    def render(self, job: Submission) -> Sequence[Request]:
        """The manifests."""
        require_container(job)
        return [Request(f"{one['kind']} {job.token}", json.dumps(one, indent=2)) for one in self._manifests.of(job)]

    def submit(self, job: Submission) -> str:
        """Create the objects; those that are there already are the job's own, of a request whose answer was lost."""
        *others, runs = self._manifests.of(job)
        for manifest in others:
            self._create(manifest)
        made = self._create(runs) or self._call("GET", self._path(*self._runs, job.token))
        owner = {key: made[key] for key in ("apiVersion", "kind")} | {
            key: made["metadata"][key] for key in ("name", "uid")
        }
        for manifest in others:
            self._give(owner, self._path("v1", _plural(manifest), job.token))
        return job.token

    def find(self, job: Submission) -> str | None:
        """The job's token, where there is such a job and it is not on its way out."""
        found = self._get(job.token, *self._runs)
        return job.token if found is not None and "deletionTimestamp" not in found["metadata"] else None

    def look(self, job: Submission, native: str) -> JobStatus:
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
        old = [(native, one["apiVersion"], _plural(one)) for one in self._manifests.of(job)]
        for one in reversed(old):
            self._delete(*one)
        patience = time.monotonic() + self._settings.grace + self._settings.timeout
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

    def work(self, native: str) -> NodeWork:
        """From the job's ConfigMap, which is called as the job is."""
        found = self._get(native, "v1", "configmaps")
        if found is None:
            raise Failure(Exit.INPUT_MISSING, f"nothing is kept of {native}", "go on where it was submitted")
        return NodeWork.parse(found["data"][FILE], native)

    def reachable(self) -> str:
        """The server's version, and that it knows the API that is asked for."""
        version = self._call("GET", "/version")["gitVersion"]
        self._call("GET", self._path(*self._runs, limit="1"))
        return f"Kubernetes {version}, {self._api.kind} in {self._namespace}"

    def _create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """The object as it was made; None where there is one of this name."""
        path = self._path(manifest["apiVersion"], _plural(manifest), fieldValidation="Strict")
        try:
            return self._call("POST", path, manifest)
        except Refused as refused:
            if refused.word != "AlreadyExists":
                raise
            return None

    def _give(self, owner: Mapping[str, Any], path: str) -> None:
        """Have an object go with the job. What is put back has the version that it was read with."""
        found = self._call("GET", path)
        self._call("PUT", path, {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}})

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


def _plural(manifest: Mapping[str, Any]) -> str:
    return f"{manifest['kind'].lower()}s"


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())
