"""The APIs of Kubernetes that run a group of pods: where their objects are, and what their statuses say of a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from drivetrain.launch.states import JobStatus, State

JOB = "drivetrain-job"
"""The label with a job's token."""
NODE = "node"
"""The name of the one group of pods, in APIs that have several; Trainer's own runtimes call it so."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""The label with a pod's number."""
REPLICA_INDEX = "training.kubeflow.org/replica-index"
"""The label with a pod's number, by Kubeflow's older operator."""
POD_INDEX = "apps.kubernetes.io/pod-index"
"""The label with a pod's number, of a StatefulSet."""


@dataclass(frozen=True)
class PodGroupApi:
    """One of the APIs that run a group of pods: where its objects are, and how their labels and states are read."""

    version: str
    kind: str
    plural: str
    seen: Callable[[Mapping[str, Any]], JobStatus]
    group_label: str = JOB
    index_label: str = INDEX
    service: bool = False
    """Whether the pods need a headless service of ours to find each other."""
    retries: bool = False
    """Whether it makes attempts within a cap that we give it."""
    child: str = ""
    """The end of the name of the Job behind it, which knows exit codes."""


def _seen_job(found: Mapping[str, Any]) -> JobStatus:
    status, spec = found.get("status", {}), found.get("spec", {})
    # Failed pods are counted, and all pods of an attempt end with its first: so many attempts have ended, rounded up.
    failed, nodes = status.get("failed", 0), spec.get("parallelism") or 1
    return _seen(status, ready=status.get("ready", 0), attempt=-(-failed // nodes), names=("Complete", "Failed"))


def _seen_jobset(found: Mapping[str, Any]) -> JobStatus:
    status = found.get("status", {})
    ready = sum(one.get("ready", 0) for one in status.get("replicatedJobsStatus", ()))
    return _seen(status, ready=ready, attempt=status.get("restarts", 0), names=("Completed", "Failed"))


def _seen_trainjob(found: Mapping[str, Any]) -> JobStatus:
    status = found.get("status", {})
    ready = sum(one.get("ready", 0) for one in status.get("jobsStatus", ()))
    return _seen(status, ready=ready, attempt=0, names=("Complete", "Failed"))


def _seen_pytorchjob(found: Mapping[str, Any]) -> JobStatus:
    status = found.get("status", {})
    return _seen(status, ready=int("Running" in _true(status)), attempt=0, names=("Succeeded", "Failed"))


def _seen_hyperpod(found: Mapping[str, Any]) -> JobStatus:
    status = found.get("status", {})
    attempt = status.get("restartCount", 0)
    return _seen(status, ready=int("Running" in _true(status)), attempt=attempt, names=("Completed", "Failed"))


def _true(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions that hold, by their types. Some operators have a null here before the first one."""
    return {one["type"]: one for one in status.get("conditions") or () if one["status"] == "True"}


def _seen(status: Mapping[str, Any], *, ready: int, attempt: int, names: tuple[str, str]) -> JobStatus:
    """What the conditions say that are true; before the first one of an end, what the pods do."""
    true = _true(status)
    done, failed = names
    if end := true.get(done) or true.get(failed):
        said = f"{end.get('reason', '')}: {end.get('message', '')}".strip(": ")
        state = State.SUCCEEDED if done in true else State.FAILED
        code = None
        # The only place where a Job tells an exit code: the words of the pod failure policy that has ended it.
        if state is State.FAILED and (match := re.search(r"exit code (\d+)", said)):
            code = int(match.group(1))
        return JobStatus(state=state, native=end["type"], attempt=attempt, reason=said, code=code, began=_start(status))
    waits = State.REQUEUED if attempt else State.PENDING
    if "Suspended" in true:
        return JobStatus(state=waits, native="Suspended", attempt=attempt, reason=true["Suspended"].get("message", ""))
    if ready:
        return JobStatus(state=State.RUNNING, native="running", attempt=attempt, began=_start(status))
    return JobStatus(state=waits, native="waits for its pods", attempt=attempt)


def _start(status: Mapping[str, Any]) -> float | None:
    text = status.get("startTime")
    if not text:
        return None
    # Python 3.10 does not read the Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


_JOBSET = "jobset.sigs.k8s.io/jobset-name"
APIS: Mapping[str, PodGroupApi] = {
    "job": PodGroupApi("batch/v1", "Job", "jobs", _seen_job, service=True, retries=True),
    "jobset": PodGroupApi(
        "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", _seen_jobset, retries=True, child=f"-{NODE}-0"
    ),
    "trainjob": PodGroupApi(
        "trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", _seen_trainjob, _JOBSET, child=f"-{NODE}-0"
    ),
    "hyperpod": PodGroupApi(
        "sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", "hyperpodpytorchjobs", _seen_hyperpod, index_label=POD_INDEX
    ),
    "pytorchjob": PodGroupApi(
        "kubeflow.org/v1", "PyTorchJob", "pytorchjobs", _seen_pytorchjob, index_label=REPLICA_INDEX
    ),
}
