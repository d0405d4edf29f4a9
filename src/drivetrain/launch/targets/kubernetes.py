"""Jobs of a Kubernetes cluster: an Indexed Job, or what JobSet, Kubeflow's operators or HyperPod's make of one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import FILE, NodeWork, Submission
from drivetrain.launch.targets.container import require_container
from drivetrain.launch.targets.kubectl import Kubectl
from drivetrain.launch.targets.kubernetes_apis import APIS
from drivetrain.launch.targets.kubernetes_manifests import OURS, Manifests
from drivetrain.launch.targets.kubernetes_objects import KubernetesObjects, place_of
from drivetrain.launch.targets.kubernetes_settings import KubernetesTarget
from drivetrain.launch.targets.remote import away, require_ended
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.exits import Exit, Failure

_POLL = 2.0  # seconds between two looks


class Kubernetes:
    """Objects of a job's own name: its work as a ConfigMap, and what runs it, which owns the rest."""

    def __init__(self, settings: KubernetesTarget) -> None:
        self._settings = settings
        self._api = APIS[settings.api]
        self._runs = (self._api.version, self._api.plural)
        self._namespace = settings.namespace or "default"
        self._manifests = Manifests(settings, self._namespace)
        self._objects = KubernetesObjects(Kubectl(settings.context, settings.timeout), self._namespace)

    def render(self, job: Submission) -> Sequence[Request]:
        """The manifests."""
        require_container(job)
        return [Request(f"{one['kind']} {job.token}", json.dumps(one, indent=2)) for one in self._manifests.of(job)]

    def submit(self, job: Submission) -> str:
        """Create the objects; those that are there already are the job's own, of a request whose answer was lost."""
        *others, runs = self._manifests.of(job)
        # What runs the job comes last, so that its pods find their work, and then owns the others: with it they go.
        for manifest in others:
            self._objects.create(manifest)
        made = self._objects.create(runs)
        if made is None:
            made = self._objects.get(self._runs, job.token)
        about = made["metadata"]
        owner = {
            "apiVersion": made["apiVersion"],
            "kind": made["kind"],
            "name": about["name"],
            "uid": about["uid"],
        }
        for manifest in others:
            self._objects.give(owner, place_of(manifest), job.token)
        return job.token

    def find(self, job: Submission) -> str | None:
        """The job's token, where there is such a job and it is not on its way out."""
        found = self._objects.find(self._runs, job.token)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return None
        return job.token

    def look(self, job: Submission, native: str) -> JobStatus:
        """From the object's status; exit codes of failed jobs from the Job behind it."""
        found = self._objects.find(self._runs, native)
        if found is None:
            return UNKNOWN
        seen = self._api.seen(found)
        if "deletionTimestamp" in found["metadata"]:
            return replace(seen, state=State.STOPPING, native=f"{seen.native}, being deleted")
        if seen.state is State.FAILED and seen.code is None and self._api.child:
            behind = self._objects.find(("batch/v1", "jobs"), f"{native}{self._api.child}")
            if behind is not None:
                told = APIS["job"].seen(behind)
                seen = replace(seen, code=told.code, reason=told.reason or seen.reason)
        return seen

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """What the pods of the rank's node have printed, one after the other."""
        node = 0
        if rank is not None:
            node = rank // self._settings.processes
        read: set[str] = set()
        while True:
            # Asked before the pods are listed: the pods of the last attempt are then among them.
            ended = not follow or self.look(job, native).state.final
            for pod in self._pods(native, node):
                name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
                if name not in read and phase not in (None, "Pending"):
                    read.add(name)
                    yield from self._objects.printed(name, follow)
            if ended:
                return
            time.sleep(_POLL)

    def cancel(self, job: Submission, native: str) -> None:
        """Delete it: nothing is left that could start pods again, and those that run have their grace."""
        self._objects.delete(self._runs, native)

    def requeue(self, job: Submission, native: str) -> str:
        """The same objects anew, once the job has ended: what it printed goes with the old ones."""
        require_ended(job, self.look(job, native))
        old = [place_of(manifest) for manifest in self._manifests.of(job)]
        for place in reversed(old):
            self._objects.delete(place, native)
        # A name is free only when its object is gone, which takes as long as its pods take to end.
        end = time.monotonic() + self._settings.grace + self._settings.timeout
        while any(self._objects.find(place, native) is not None for place in old):
            if time.monotonic() > end:
                raise away(f"the old job {native} is still being deleted")
            time.sleep(_POLL)
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """Jobs of the namespace with our label."""
        jobs = []
        for found in self._objects.labelled(self._runs, OURS):
            name = found["metadata"]["name"]
            jobs.append(Listed(name, name, self._api.seen(found)))
        return jobs

    def work(self, native: str) -> NodeWork:
        """From the job's ConfigMap, which is called as the job is."""
        found = self._objects.find(("v1", "configmaps"), native)
        if found is None:
            raise Failure(Exit.INPUT_MISSING, f"nothing is kept of {native}", "go on where it was submitted")
        return NodeWork.parse(found["data"][FILE], native)

    def reachable(self) -> str:
        """The server's version, and that it knows the API that is asked for."""
        version = self._objects.version()
        self._objects.require_kind(self._runs)
        return f"Kubernetes {version}, {self._api.kind} in {self._namespace}"

    def _pods(self, native: str, node: int) -> list[dict[str, Any]]:
        """The pods of one node, oldest first: one for each attempt."""
        found = self._objects.labelled(
            ("v1", "pods"), {self._api.group_label: native, self._api.index_label: str(node)}
        )
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])
