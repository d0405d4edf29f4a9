"""Training jobs of SageMaker."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.aws import AwsService, AwsTarget, require_valid
from drivetrain.launch.targets.container import moved, require_container, run_worker
from drivetrain.launch.targets.recipe import Mount, Text, Word
from drivetrain.launch.targets.remote import (
    Refused,
    packed,
    parcelled,
    renamed,
    require_ended,
    require_short,
    token_of,
    unpacked,
    with_extras,
    wrong,
)
from drivetrain.launch.targets.shared import require_files
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.exits import Outcome
from drivetrain.spec.settings import Count, Duration, nothing, seconds_of

CHECKPOINTS = "/opt/ml/checkpoints"
"""The folder that SageMaker copies to S3 while a job trains, and back before it starts again."""
INPUT = Path("/opt/ml/input")
OUTPUT = Path("/opt/ml/output")
PART = 2_500
"""Letters of one hyperparameter. There are at most `PARTS` of them, and together they carry the work."""
PARTS = 100
TAG = "drivetrain"
"""What tells our jobs from others; its value is the job's token."""
GROUP = "/aws/sagemaker/TrainingJobs"
STATES: Mapping[str, State] = {
    "InProgress": State.RUNNING,
    "Stopping": State.STOPPING,
    "Stopped": State.CANCELLED,
    "Completed": State.SUCCEEDED,
    "Failed": State.FAILED,
    "Deleting": State.STOPPING,
}
SECONDARY: Mapping[str, State] = {
    **dict.fromkeys(("Starting", "Pending", "LaunchingMLInstances", "PreparingTrainingStack"), State.PENDING),
    **dict.fromkeys(("Downloading", "DownloadingTrainingImage"), State.PENDING),
    **dict.fromkeys(("Interrupted", "Restarting"), State.REQUEUED),
    **dict.fromkeys(("MaxRuntimeExceeded", "MaxWaitTimeExceeded"), State.FAILED),
}
"""Where the second word says more than the first."""
_DAY = 86_400.0  # seconds: what SageMaker gives a job that asks for nothing
_REASON = 1_000  # letters of a failure's reason that SageMaker shows


@dataclass(frozen=True, kw_only=True)
class SageMakerTarget(AwsTarget):
    """Training jobs of SageMaker."""

    unused: ClassVar[tuple[str, ...]] = ("namespace", "queue", "cpus", "memory", "accelerators")
    factory: ClassVar[str] = "drivetrain.launch.targets.sagemaker:SageMaker"
    kind: Annotated[Literal["sagemaker"], nothing("training jobs")] = "sagemaker"
    retries: Annotated[
        int, Ge(0), Le(30), nothing("attempts after the first one, where SageMaker itself failed: it makes no others")
    ] = 20
    output: Annotated[Text | None, nothing("S3 URI where SageMaker puts what a job leaves")] = None
    checkpoints: Annotated[
        Text | None, nothing("S3 URI that /opt/ml/checkpoints is kept equal to; then runs can be a folder there")
    ] = None
    volume: Annotated[Count, nothing("GB of each machine's disk")] = 100
    spot: Annotated[bool, nothing("machines that may be taken away: it waits for others, and goes on")] = False
    wait: Annotated[Duration | None, nothing("for spot machines and training together, such as 3d")] = None
    subnets: Annotated[tuple[Word, ...], nothing("of a VPC; none: SageMaker's own network")] = ()
    security_groups: Annotated[tuple[Word, ...], nothing("of that VPC")] = ()


class SageMaker:
    """A training job of a job's own name, or of that and a suffix where it was asked for again: names are for ever."""

    def __init__(self, settings: SageMakerTarget) -> None:
        self._settings = settings
        self._sagemaker = AwsService("sagemaker", settings)
        self._logs = AwsService("logs", settings)

    def render(self, job: Submission) -> Sequence[Request]:
        """The request."""
        kept = [CHECKPOINTS] if self._settings.checkpoints else []
        require_container(job, *kept)
        request = _request(job, self._settings, job.token)
        require_valid(job.target, "sagemaker", "CreateTrainingJob", request)
        return [Request("sagemaker create-training-job", json.dumps(request, indent=2))]

    def submit(self, job: Submission) -> str:
        """Create the training job; where its name is taken, that is the job."""
        return self._create(job, job.token)

    def find(self, job: Submission) -> str | None:
        """The newest training job of this name, or of this name and a suffix."""
        for one in self._summaries(NameContains=job.token):
            # A name may contain another job's token only as a part: that is another job.
            if token_of(one["TrainingJobName"]) == job.token:
                return one["TrainingJobName"]
        return None

    def look(self, job: Submission, native: str) -> JobStatus:
        """From describe-training-job, which forgets no job."""
        try:
            return seen_from(self._sagemaker("describe_training_job", TrainingJobName=native))
        except Refused as refused:
            if "not found" in refused.outcome.cause.lower():
                return UNKNOWN
            raise

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """From CloudWatch: what the rank's machine has printed, whenever it was started."""
        # Hosts are counted from 1; ranks lie on them in order.
        number = 1
        if rank is not None:
            number += rank // self._settings.processes
        ended = (lambda: self.look(job, native).state.final) if follow else None
        return self._logs.followed(GROUP, lambda: self._streams(f"{native}/algo-{number}-"), ended)

    def cancel(self, job: Submission, native: str) -> None:
        """Containers get SIGTERM, and 120 s. SageMaker does not start again what was stopped."""
        try:
            self._sagemaker("stop_training_job", TrainingJobName=native)
        except Refused:
            # It is refused for a job that has ended meanwhile, which is what was wanted.
            if not self.look(job, native).state.final:
                raise

    def requeue(self, job: Submission, native: str) -> str:
        """Another training job on the same run, once this one has ended."""
        require_ended(job, self.look(job, native))
        return self._create(job, renamed(job.token))

    def listed(self) -> Sequence[Listed]:
        """Training jobs with our tag, newest first."""
        found = self._sagemaker.pages(
            "search",
            Resource="TrainingJob",
            SearchExpression={"Filters": [{"Name": f"Tags.{TAG}", "Operator": "Exists"}]},
            SortBy="CreationTime",
            SortOrder="Descending",
        )
        jobs = []
        for page in found:
            for result in page["Results"]:
                job = result["TrainingJob"]
                name = job["TrainingJobName"]
                jobs.append(Listed(token_of(name), name, seen_from(job)))
        return jobs

    def work(self, native: str) -> NodeWork:
        """From the hyperparameters that carry it."""
        parts = self._sagemaker("describe_training_job", TrainingJobName=native).get("HyperParameters", {})
        return parcelled(_joined(parts), native)

    def reachable(self) -> str:
        """The service, by a look at its newest job."""
        self._sagemaker("list_training_jobs", MaxResults=1)
        return f"SageMaker, {self._settings.region or 'the usual region'}"

    def _create(self, job: Submission, name: str) -> str:
        try:
            self._sagemaker("create_training_job", **_request(job, self._settings, name))
        except Refused as refused:
            if refused.word != "ResourceInUse":  # it was sent before, and its answer lost
                raise
        return name

    def _summaries(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """Training jobs, newest first."""
        order = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        for page in self._sagemaker.pages("list_training_jobs", **order, **wanted):
            yield from page["TrainingJobSummaries"]

    def _streams(self, prefix: str) -> list[str]:
        streams = []
        try:
            for page in self._logs.pages("describe_log_streams", logGroupName=GROUP, logStreamNamePrefix=prefix):
                streams += page["logStreams"]
        except Refused as refused:
            if refused.word == "ResourceNotFoundException":  # nothing was ever printed in this region
                return []
            raise
        streams.sort(key=lambda one: one.get("firstEventTimestamp", 0))
        return [one["logStreamName"] for one in streams]


def _request(job: Submission, settings: SageMakerTarget, name: str) -> dict[str, Any]:
    """The request for a training job of this name; Failure(78) for what it lacks."""
    missing = [one for one in ("role", "accelerator", "output") if not getattr(settings, one)]
    if missing:
        hint = "role: the job's ARN; accelerator: an instance type such as ml.p5.48xlarge; output: an S3 URI"
        raise wrong(job, f"{', '.join(missing)} missing", hint)
    require_files(job)
    optional: dict[str, Any] = {}
    if settings.subnets:
        network = {"Subnets": list(settings.subnets), "SecurityGroupIds": list(settings.security_groups)}
        optional["VpcConfig"] = network
    if settings.checkpoints:
        optional["CheckpointConfig"] = {"S3Uri": settings.checkpoints, "LocalPath": CHECKPOINTS}
    if settings.retries:
        optional["RetryStrategy"] = {"MaximumRetryAttempts": settings.retries}
    if settings.mounts:
        optional["InputDataConfig"] = [_channel(job, mount) for mount in settings.mounts]
    ours = {
        "TrainingJobName": name,
        "HyperParameters": _parts(job, packed(moved(job))),
        "AlgorithmSpecification": {
            "TrainingImage": settings.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [settings.python or "python", "-m", "drivetrain.launch.targets.sagemaker"],
        },
        "RoleArn": settings.role,
        "OutputDataConfig": {"S3OutputPath": settings.output},
        "ResourceConfig": {
            "InstanceType": settings.accelerator,
            "InstanceCount": settings.nodes,
            "VolumeSizeInGB": settings.volume,
        },
        "StoppingCondition": _stopping(job, settings),
        "EnableManagedSpotTraining": settings.spot,
        "Tags": [{"Key": TAG, "Value": job.token}],
        **optional,
    }
    return with_extras(job, ours)


def _stopping(job: Submission, settings: SageMakerTarget) -> dict[str, int]:
    seconds = _DAY
    if settings.walltime is not None:
        seconds = seconds_of(settings.walltime)
    runtime = round(seconds)
    if not settings.spot:
        return {"MaxRuntimeInSeconds": runtime}
    wait = 2 * runtime
    if settings.wait is not None:
        wait = round(seconds_of(settings.wait))
    if wait < runtime:
        cause = f"wait is {wait} s, and walltime {runtime} s"
        raise wrong(job, cause, "it is for waiting and training together")
    return {"MaxRuntimeInSeconds": runtime, "MaxWaitTimeInSeconds": wait}


def seen_from(told: Mapping[str, Any]) -> JobStatus:
    """What a description of a training job says, by its first word, its second, and what happened between."""
    word, second = told["TrainingJobStatus"], told.get("SecondaryStatus", "")
    state = STATES.get(word, State.RUNNING)
    # Only of these two the second word says something else: a job that was stopped may have run out of time.
    if word in ("InProgress", "Stopped"):
        state = SECONDARY.get(second, state)
    attempt, began, message = 0, None, ""
    for passed in told.get("SecondaryStatusTransitions", ()):
        if passed["Status"] in ("Interrupted", "Restarting"):
            attempt += 1
        elif passed["Status"] == "Training":
            began = passed["StartTime"].timestamp()
        message = passed.get("StatusMessage", "")
    reason = told.get("FailureReason") or message
    native = word
    if second and second != word:
        native = f"{word}/{second}"
    return JobStatus(state=state, native=native, attempt=attempt, reason=reason, code=_code(reason), began=began)


def _code(reason: str) -> int | None:
    """The exit code in a reason, as `main` left it, or as SageMaker adds it."""
    # SageMaker keeps no code of its own: what the container has left as a reason has it in words.
    match = re.search(r"exit code:? (\d+)", reason)
    if match is None:
        return None
    return int(match.group(1))


def _parts(job: Submission, parcel: str) -> dict[str, str]:
    require_short(job, len(parcel), PART * PARTS, "a request of SageMaker's")
    return {f"part-{start // PART:02}": parcel[start : start + PART] for start in range(0, len(parcel), PART)}


def _joined(parts: Mapping[str, str]) -> str:
    return "".join(parts[name] for name in sorted(parts))


def _channel(job: Submission, mount: Mount) -> dict[str, Any]:
    """An input channel: an S3 prefix, or a folder of a file system as `efs:ID:/FOLDER` or `lustre:ID:/FOLDER`."""
    path, (kind, _, rest) = Path(mount.path), mount.source.partition(":")
    if path.parent != INPUT / "data":
        raise wrong(job, f"mounts: {mount.path} is not {INPUT}/data/NAME", "SageMaker puts data nowhere else")
    if kind == "s3":
        source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": mount.source}}
        return {"ChannelName": path.name, "DataSource": source, "InputMode": "FastFile"}
    system, _, folder = rest.partition(":")
    if kind not in ("efs", "lustre") or not folder:
        cause = f"mounts: {mount.source!r} is no s3://, efs:ID:/FOLDER or lustre:ID:/FOLDER"
        raise wrong(job, cause, "SageMaker mounts nothing else")
    file_system = "EFS" if kind == "efs" else "FSxLustre"
    source = {
        "FileSystemId": system,
        "FileSystemType": file_system,
        "DirectoryPath": folder,
        "FileSystemAccessMode": "ro" if mount.read_only else "rw",
    }
    return {"ChannelName": path.name, "DataSource": {"FileSystemDataSource": source}}


def variables(resources: Mapping[str, Any]) -> dict[str, str]:
    """What resourceconfig.json says, in the words of `drivetrain worker`. Hosts are algo-1, algo-2 ..., and resolve."""
    # By number: as words algo-10 comes before algo-2.
    hosts = sorted(resources["hosts"], key=lambda host: int(host.rpartition("-")[2]))
    return {
        "DRIVETRAIN_NODE": str(hosts.index(resources["current_host"])),
        "DRIVETRAIN_NODES": str(len(hosts)),
        "DRIVETRAIN_ADDRESS": hosts[0],
    }


def main(input: Path = INPUT, output: Path = OUTPUT) -> int:
    """What a container of SageMaker's runs. Why it failed is left where SageMaker looks for it."""
    parts = json.loads((input / "config" / "hyperparameters.json").read_text())
    resources = json.loads((input / "config" / "resourceconfig.json").read_text())
    text = unpacked(_joined(parts))
    code = run_worker(text, variables(resources))
    if code:
        cause = "see its log"
        with suppress(OSError, ValueError, KeyError):
            cause = Outcome.read(Path(NodeWork.from_json(json.loads(text)).job.folder) / "exit.json").line()
        (output / "failure").write_text(f"exit code {code}: {cause}"[:_REASON])
    return code


if __name__ == "__main__":
    sys.exit(main())
