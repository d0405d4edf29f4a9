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
        definition, request = self._definition(job), self._request(job)
        require_valid(job.target, "batch", "RegisterJobDefinition", definition)
        require_valid(job.target, "batch", "SubmitJob", request)
        named = (("batch register-job-definition", definition), ("batch submit-job", request))
        return [Request(what, json.dumps(body, indent=2)) for what, body in named]

    def submit(self, job: Submission) -> str:
        """Register the definition where it is not there, and submit the job."""
        definition = self._definition(job)
        name = definition["jobDefinitionName"]
        known = self._batch("describe_job_definitions", jobDefinitionName=name, status="ACTIVE")
        if not known["jobDefinitions"]:
            self._batch("register_job_definition", **definition)
        return self._batch("submit_job", **self._request(job))["jobId"]

    def find(self, job: Submission) -> str | None:
        """The newest job of this name."""
        known = list(self._summaries("JOB_NAME", job.token))
        return max(known, key=lambda one: one["createdAt"])["jobId"] if known else None

    def look(self, job: Submission, native: str) -> JobStatus:
        """From describe-jobs, which forgets a job some days after its end."""
        found = self._batch("describe_jobs", jobs=[native])["jobs"]
        return seen_from(found[0]) if found else UNKNOWN

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """From CloudWatch: what the rank's node has printed, in every attempt."""
        node = f"{native}#{0 if rank is None else rank // self._settings.processes}"
        return self._logs.followed(
            self._settings.log_group,
            lambda: self._streams(node),
            (lambda: self.look(job, native).state.final) if follow else None,
        )

    def cancel(self, job: Submission, native: str) -> None:
        """Batch does not try again what was terminated. Containers get SIGTERM, and SIGKILL 30 s later."""
        self._batch("terminate_job", jobId=native, reason="cancelled by its user")

    def requeue(self, job: Submission, native: str) -> str:
        """Another job of the same name, once this one has ended."""
        require_ended(job, self.look(job, native))
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """The jobs of our definitions in the queue."""
        return [
            Listed(one["jobName"], one["jobId"], seen_from(one))
            for one in self._summaries("JOB_DEFINITION", f"{PREFIX}*")
            if one.get("jobDefinition", PREFIX).rpartition("/")[2].startswith(PREFIX)
        ]

    def work(self, native: str) -> NodeWork:
        """From the variables of its nodes, as the job's description has them or that of its first node."""
        found = self._batch("describe_jobs", jobs=[native, f"{native}#0"])["jobs"]
        nodes = [part for one in found for part in one.get("nodeProperties", {}).get("nodeRangeProperties", ())]
        variables = [one for part in (*nodes, *found) for one in part.get("container", {}).get("environment", ())]
        return parcelled(next((one["value"] for one in variables if one["name"] == PARCEL), None), native)

    def reachable(self) -> str:
        """The queue, and whether it takes jobs."""
        queue = self._queue()
        found = self._batch("describe_job_queues", jobQueues=[queue])["jobQueues"]
        if not found:
            raise Failure(Exit.PEER_UNAVAILABLE, f"AWS Batch has no queue {queue}", "set the target's queue or region")
        return f"AWS Batch, queue {queue} {found[0]['state']} {found[0].get('status', '')}".rstrip()

    def _definition(self, job: Submission) -> dict[str, Any]:
        settings = self._settings
        body = {
            "type": "multinode",
            "nodeProperties": {
                "numNodes": settings.nodes,
                "mainNode": 0,
                "nodeRangeProperties": [{"targetNodes": "0:", "container": self._container(job)}],
            },
            "retryStrategy": {"attempts": settings.retries + 1, "evaluateOnExit": list(RULES)},
            "tags": {"drivetrain": "1"},
        }
        if settings.walltime is not None:
            body["timeout"] = {"attemptDurationSeconds": self._walltime(job, seconds_of(settings.walltime))}
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        return {"jobDefinitionName": f"{PREFIX}{digest}", **body}

    def _walltime(self, job: Submission, seconds: float) -> int:
        if seconds < SHORTEST:
            raise wrong(job, f"walltime of {seconds:g} s", f"Batch takes {SHORTEST} s at least")
        return round(seconds)

    def _container(self, job: Submission) -> dict[str, Any]:
        settings = self._settings
        if settings.cpus is None or settings.memory is None:
            raise wrong(job, "cpus and memory are missing", "Batch places jobs by them: say what each node needs")
        needs = {"VCPU": settings.cpus, "MEMORY": mebibytes(settings.memory), "GPU": settings.accelerators}
        volumes = [_volume(job, f"data-{number}", mount) for number, mount in enumerate(settings.mounts)]
        points = [
            {"sourceVolume": volume["name"], "containerPath": mount.path, "readOnly": mount.read_only}
            for volume, mount in zip(volumes, settings.mounts, strict=True)
        ]
        references = {name: at for name, at in settings.secrets.items() if not at.startswith(FROM_FILE)}
        if references and not settings.execution_role:
            raise wrong(job, "secrets without an execution_role", "name a role that may read them")
        optional = {
            "jobRoleArn": settings.role,
            "executionRoleArn": settings.execution_role,
            "instanceType": settings.accelerator,
        }
        return {
            "image": settings.image,
            "command": [settings.python or "python", *_COMMAND],
            "resourceRequirements": [{"type": what, "value": str(size)} for what, size in needs.items() if size],
            "linuxParameters": {"initProcessEnabled": True, "sharedMemorySize": settings.shared_memory},
            "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": settings.log_group}},
            "volumes": volumes,
            "mountPoints": points,
            "secrets": [{"name": name, "valueFrom": at} for name, at in references.items()],
            **{name: value for name, value in optional.items() if value},
        }

    def _request(self, job: Submission) -> dict[str, Any]:
        parcel = packed(moved(job))
        require_short(job, len(parcel), LONGEST, "a request of Batch's")
        override = {"environment": [{"name": PARCEL, "value": parcel}]}
        ours = {
            "jobName": job.token,
            "jobQueue": self._queue(),
            "jobDefinition": self._definition(job)["jobDefinitionName"],
            "nodeOverrides": {"nodePropertyOverrides": [{"targetNodes": "0:", "containerOverrides": override}]},
            "propagateTags": True,
        }
        return with_extras(job, ours)

    def _queue(self) -> str:
        if not self._settings.queue:
            raise Failure(Exit.BAD_RECIPE, "an aws-batch target has no queue", "set queue to a job queue's name")
        return self._settings.queue

    def _summaries(self, name: str, value: str) -> Iterator[dict[str, Any]]:
        wanted = [{"name": name, "values": [value]}]
        for page in self._batch.pages("list_jobs", jobQueue=self._queue(), filters=wanted):
            yield from page["jobSummaryList"]

    def _streams(self, node: str) -> list[str]:
        """The log streams of a node's attempts, in their order."""
        found = self._batch("describe_jobs", jobs=[node])["jobs"]
        if not found:
            return []
        containers = [
            *(one.get("container", {}) for one in found[0].get("attempts", ())),
            found[0].get("container", {}),
        ]
        names = (one.get("logStreamName") for one in containers)
        return list(dict.fromkeys(name for name in names if name))


def seen_from(detail: Mapping[str, Any]) -> JobStatus:
    """What a job's description or summary says. A job's own numbers are those of its main node."""
    word = detail["status"]
    attempts = detail.get("attempts", [])
    last = attempts[-1] if attempts else {}
    code = {**last.get("container", {}), **detail.get("container", {})}.get("exitCode")
    state = STATES.get(word, State.PENDING)
    ending = detail.get("isTerminated") or detail.get("isCancelled")
    if ending and state is not State.SUCCEEDED:
        state = State.CANCELLED if state.final else State.STOPPING
    elif state is State.PENDING and attempts:
        state = State.REQUEUED
    return JobStatus(
        state=state,
        native=word,
        attempt=max(0, len(attempts) - state.final),
        reason=detail.get("statusReason", ""),
        code=code if state.final else None,
        began=detail["startedAt"] / 1000 if detail.get("startedAt") else None,
    )


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
