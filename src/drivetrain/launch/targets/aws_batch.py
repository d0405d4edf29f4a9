"""Jobs of AWS Batch: multi-node parallel jobs, whose main node decides how they end."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from drivetrain.launch.node import FROM_FILE
from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.aws import AwsService, AwsTarget, require_valid
from drivetrain.launch.targets.container import (
    AGAIN,
    WORTH_AGAIN,
    moved,
    own_address,
    require_container,
    run_worker,
)
from drivetrain.launch.targets.recipe import Mount, Text, Word, mebibytes
from drivetrain.launch.targets.remote import (
    packed,
    parcelled,
    require_ended,
    require_short,
    unpacked,
    with_extras,
    wrong,
)
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.settings import Count, nothing, seconds_of

PREFIX = "drivetrain-"
"""How the names of our job definitions begin, which tells our jobs from others."""
PARCEL = "DRIVETRAIN_PARCEL"
"""The variable that carries the work."""
LONGEST = 20_000
"""Bytes of a parcel: a request of Batch's has 30 KiB in all."""
SHORTEST = 60
"""Seconds of the shortest walltime that Batch takes; its model does not say so."""
RULES = (
    {"action": "RETRY", "onExitCode": str(int(AGAIN))},
    {"action": "RETRY", "onStatusReason": "Host EC2*"},
    {"action": "EXIT", "onReason": "*"},
    {"action": "EXIT", "onExitCode": "*"},
)
"""Which ends are tried again. Batch has room for five rules, and tries again what none of them fits."""
STATES: Mapping[str, State] = {
    **dict.fromkeys(("SUBMITTED", "PENDING", "RUNNABLE", "STARTING"), State.PENDING),
    "RUNNING": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "FAILED": State.FAILED,
}
_COMMAND = ("-m", "drivetrain.launch.targets.aws_batch")


@dataclass(frozen=True, kw_only=True)
class AwsBatchTarget(AwsTarget):
    """A queue of AWS Batch whose compute environment can run multi-node parallel jobs (EC2, not Fargate)."""

    unused: ClassVar[tuple[str, ...]] = ("namespace",)
    factory: ClassVar[str] = "drivetrain.launch.targets.aws_batch:AwsBatch"
    kind: Annotated[Literal["aws-batch"], nothing("multi-node parallel jobs")] = "aws-batch"
    retries: Annotated[int, Ge(0), Le(9), nothing("attempts after the first one: Batch makes ten at most")] = 9
    execution_role: Annotated[Word | None, nothing("the role that reads secrets; `role` is the job's own")] = None
    shared_memory: Annotated[Count, nothing("MiB of /dev/shm, through which data workers hand over batches")] = 1024
    log_group: Annotated[Text, nothing("of CloudWatch")] = "/aws/batch/job"


class AwsBatch:
    """One job definition for all jobs of a target, registered by what is in it; each job's own work as an override."""

    def __init__(self, settings: AwsBatchTarget) -> None:
        self._settings = settings
        self._batch = AwsService("batch", settings)
        self._logs = AwsService("logs", settings)

    def render(self, job: Submission) -> Sequence[Request]:
        """The job definition and the request that uses it."""
        require_container(job)
        definition, request = _definition(job, self._settings), _request(job, self._settings)
        require_valid(job.target, "batch", "RegisterJobDefinition", definition)
        require_valid(job.target, "batch", "SubmitJob", request)
        return [
            Request("batch register-job-definition", json.dumps(definition, indent=2)),
            Request("batch submit-job", json.dumps(request, indent=2)),
        ]

    def submit(self, job: Submission) -> str:
        """Register the definition where it is not there, and submit the job."""
        # Its name is a digest of its content: one that is there has the same content, whoever registered it.
        definition = _definition(job, self._settings)
        name = definition["jobDefinitionName"]
        known = self._batch("describe_job_definitions", jobDefinitionName=name, status="ACTIVE")
        if not known["jobDefinitions"]:
            self._batch("register_job_definition", **definition)
        return self._batch("submit_job", **_request(job, self._settings))["jobId"]

    def find(self, job: Submission) -> str | None:
        """The newest job of this name."""
        known = list(self._summaries("JOB_NAME", job.token))
        if not known:
            return None
        return max(known, key=lambda one: one["createdAt"])["jobId"]

    def look(self, job: Submission, native: str) -> JobStatus:
        """From describe-jobs, which forgets a job some days after its end."""
        found = self._batch("describe_jobs", jobs=[native])["jobs"]
        return seen_from(found[0]) if found else UNKNOWN

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """From CloudWatch: what the rank's node has printed, in every attempt."""
        number = 0
        if rank is not None:
            number = rank // self._settings.processes
        ended = (lambda: self.look(job, native).state.final) if follow else None
        return self._logs.followed(self._settings.log_group, lambda: self._streams(f"{native}#{number}"), ended)

    def cancel(self, job: Submission, native: str) -> None:
        """Batch does not try again what was terminated. Containers get SIGTERM, and SIGKILL 30 s later."""
        self._batch("terminate_job", jobId=native, reason="cancelled by its user")

    def requeue(self, job: Submission, native: str) -> str:
        """Another job of the same name, once this one has ended."""
        require_ended(job, self.look(job, native))
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """The jobs of our definitions in the queue."""
        jobs = []
        for one in self._summaries("JOB_DEFINITION", f"{PREFIX}*"):
            if one.get("jobDefinition", PREFIX).rpartition("/")[2].startswith(PREFIX):
                jobs.append(Listed(one["jobName"], one["jobId"], seen_from(one)))
        return jobs

    def work(self, native: str) -> NodeWork:
        """From the variables of its nodes, as the job's description has them or that of its first node."""
        found = self._batch("describe_jobs", jobs=[native, f"{native}#0"])["jobs"]
        parts = []
        for described in found:
            parts += described.get("nodeProperties", {}).get("nodeRangeProperties", ())
        for part in (*parts, *found):
            for variable in part.get("container", {}).get("environment", ()):
                if variable["name"] == PARCEL:
                    return parcelled(variable["value"], native)
        return parcelled(None, native)

    def reachable(self) -> str:
        """The queue, and whether it takes jobs."""
        queue = _queue(self._settings)
        found = self._batch("describe_job_queues", jobQueues=[queue])["jobQueues"]
        if not found:
            raise Failure(Exit.PEER_UNAVAILABLE, f"AWS Batch has no queue {queue}", "set the target's queue or region")
        return f"AWS Batch, queue {queue} {found[0]['state']} {found[0].get('status', '')}".rstrip()

    def _summaries(self, name: str, value: str) -> Iterator[dict[str, Any]]:
        wanted = [{"name": name, "values": [value]}]
        for page in self._batch.pages("list_jobs", jobQueue=_queue(self._settings), filters=wanted):
            yield from page["jobSummaryList"]

    def _streams(self, node: str) -> list[str]:
        """The log streams of a node's attempts, in their order."""
        found = self._batch("describe_jobs", jobs=[node])["jobs"]
        if not found:
            return []
        # The attempt under way is only in the job itself, the last one that has ended in both.
        streams: dict[str, None] = {}
        for part in (*found[0].get("attempts", ()), found[0]):
            if name := part.get("container", {}).get("logStreamName"):
                streams[name] = None
        return list(streams)


def seen_from(detail: Mapping[str, Any]) -> JobStatus:
    """What a job's description or summary says. A job's own numbers are those of its main node."""
    word = detail["status"]
    attempts = detail.get("attempts", [])
    container = dict(detail.get("container", {}))
    if attempts:
        container = {**attempts[-1].get("container", {}), **container}
    state = STATES.get(word, State.PENDING)
    ending = detail.get("isTerminated") or detail.get("isCancelled")
    if ending and state is not State.SUCCEEDED:
        state = State.CANCELLED if state.final else State.STOPPING
    elif state is State.PENDING and attempts:
        state = State.REQUEUED
    began = None
    if detail.get("startedAt"):
        began = detail["startedAt"] / 1000
    return JobStatus(
        state=state,
        native=word,
        # Batch lists attempts once they have ended, and an attempt's number counts those before it.
        attempt=max(0, len(attempts) - state.final),
        reason=detail.get("statusReason", ""),
        code=container.get("exitCode") if state.final else None,
        began=began,
    )


def _definition(job: Submission, settings: AwsBatchTarget) -> dict[str, Any]:
    """The job definition, called by what is in it: jobs that ask for the same share one."""
    body = {
        "type": "multinode",
        "nodeProperties": {
            "numNodes": settings.nodes,
            "mainNode": 0,
            "nodeRangeProperties": [{"targetNodes": "0:", "container": _container(job, settings)}],
        },
        "retryStrategy": {"attempts": settings.retries + 1, "evaluateOnExit": list(RULES)},
        "tags": {"drivetrain": "1"},
    }
    if settings.walltime is not None:
        seconds = seconds_of(settings.walltime)
        if seconds < SHORTEST:
            raise wrong(job, f"walltime of {seconds:g} s", f"Batch takes {SHORTEST} s at least")
        body["timeout"] = {"attemptDurationSeconds": round(seconds)}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    return {"jobDefinitionName": f"{PREFIX}{digest}", **body}


def _container(job: Submission, settings: AwsBatchTarget) -> dict[str, Any]:
    if settings.cpus is None or settings.memory is None:
        raise wrong(job, "cpus and memory are missing", "Batch places jobs by them: say what each node needs")
    volumes, points = [], []
    for number, mount in enumerate(settings.mounts):
        volume = _volume(job, f"data-{number}", mount)
        volumes.append(volume)
        points.append({"sourceVolume": volume["name"], "containerPath": mount.path, "readOnly": mount.read_only})
    # Only where a secret lies is said here. One that is a file is read by the worker itself.
    secrets = []
    for name, reference in settings.secrets.items():
        if not reference.startswith(FROM_FILE):
            secrets.append({"name": name, "valueFrom": reference})
    if secrets and not settings.execution_role:
        raise wrong(job, "secrets without an execution_role", "name a role that may read them")
    resources = []
    for what, size in (("VCPU", settings.cpus), ("MEMORY", mebibytes(settings.memory)), ("GPU", settings.accelerators)):
        if size:
            resources.append({"type": what, "value": str(size)})
    optional = {
        "jobRoleArn": settings.role,
        "executionRoleArn": settings.execution_role,
        "instanceType": settings.accelerator,
    }
    return {
        "image": settings.image,
        "command": [settings.python or "python", *_COMMAND],
        "resourceRequirements": resources,
        "linuxParameters": {"initProcessEnabled": True, "sharedMemorySize": settings.shared_memory},
        "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": settings.log_group}},
        "volumes": volumes,
        "mountPoints": points,
        "secrets": secrets,
        **{name: value for name, value in optional.items() if value},
    }


def _request(job: Submission, settings: AwsBatchTarget) -> dict[str, Any]:
    """The request of one job, whose work is an override of the definition's environment."""
    parcel = packed(moved(job))
    require_short(job, len(parcel), LONGEST, "a request of Batch's")
    override = {"environment": [{"name": PARCEL, "value": parcel}]}
    ours = {
        "jobName": job.token,
        "jobQueue": _queue(settings),
        "jobDefinition": _definition(job, settings)["jobDefinitionName"],
        "nodeOverrides": {"nodePropertyOverrides": [{"targetNodes": "0:", "containerOverrides": override}]},
        "propagateTags": True,
    }
    return with_extras(job, ours)


def _queue(settings: AwsBatchTarget) -> str:
    if not settings.queue:
        raise Failure(Exit.BAD_RECIPE, "an aws-batch target has no queue", "set queue to a job queue's name")
    return settings.queue


def _volume(job: Submission, name: str, mount: Mount) -> dict[str, Any]:
    """`efs:fs-0123:/folder` is a file system, anything that begins with / a folder of the machine."""
    kind, _, rest = mount.source.partition(":")
    if kind == "efs":
        system, _, folder = rest.partition(":")
        options = {"fileSystemId": system, "rootDirectory": folder or "/", "transitEncryption": "ENABLED"}
        return {"name": name, "efsVolumeConfiguration": options}
    if mount.source.startswith("/"):
        return {"name": name, "host": {"sourcePath": mount.source}}
    cause = f"mounts: {mount.source!r} is neither efs:ID:/FOLDER nor a path of the machine"
    raise wrong(job, cause, "data on S3 is read by its URL, or copied to a file system")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What Batch says, in the words of `drivetrain worker`. The main node is not told its own address."""
    said = {"DRIVETRAIN_ATTEMPT": str(max(0, int(environment["AWS_BATCH_JOB_ATTEMPT"]) - 1))}
    if environment["AWS_BATCH_JOB_NODE_INDEX"] == environment["AWS_BATCH_JOB_MAIN_NODE_INDEX"]:
        said["DRIVETRAIN_ADDRESS"] = own_address()
    return said


def main() -> int:
    """What a container of Batch's runs; 69 stands for every end that is worth another attempt."""
    code = run_worker(unpacked(os.environ[PARCEL]), variables(os.environ))
    return AGAIN if code in WORTH_AGAIN else code


if __name__ == "__main__":
    sys.exit(main())
