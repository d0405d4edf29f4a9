"""Training jobs of SageMaker: requests against the service's own model, and their life on a fake that keeps to it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from drivetrain.launch.states import State
from drivetrain.launch.targets import sagemaker
from drivetrain.launch.targets.aws import AwsService, mistakes
from drivetrain.launch.targets.remote import Refused, packed
from drivetrain.launch.targets.sagemaker import SageMaker, main, seen_from, variables
from drivetrain.spec.exits import Exit, Failure, Outcome
from submissions import hostile, opened, submission

MOMENT = datetime(2026, 11, 21, tzinfo=timezone.utc)
TARGET = {
    "kind": "sagemaker",
    "nodes": 2,
    "processes": 4,
    "accelerator": "ml.p4d.24xlarge",
    "image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1",
    "role": "arn:aws:iam::123456789012:role/train",
    "region": "eu-west-1",
    "output": "s3://bucket/output",
    "runs": "s3://bucket/runs",
    "folder": "/app",
}


class Fake(AwsService):
    """The calls that a target makes, on jobs in memory. Requests and answers are held against the service's model."""

    def __init__(self, settings):
        super().__init__("sagemaker", settings)
        from botocore.session import get_session

        self._model = get_session().get_service_model("sagemaker")
        self.jobs = {}

    def __call__(self, operation, **request):
        model = self._model.operation_model("".join(part.title() for part in operation.split("_")))
        assert list(mistakes(model.input_shape, request)) == []
        answer = getattr(self, operation)(**request)
        assert model.output_shape is None or list(mistakes(model.output_shape, answer)) == []
        return answer

    def move(self, name, status, second, **said):
        job = self.jobs[name]
        passed = [*job["SecondaryStatusTransitions"], {"Status": second, "StartTime": MOMENT, "StatusMessage": second}]
        job.update(TrainingJobStatus=status, SecondaryStatus=second, SecondaryStatusTransitions=passed, **said)

    def create_training_job(self, TrainingJobName, **request):
        if TrainingJobName in self.jobs:
            raise self._refused("create_training_job", "ResourceInUse", "Training job names must be unique")
        self.jobs[TrainingJobName] = {"SecondaryStatusTransitions": [], "CreationTime": MOMENT, **request}
        self.move(TrainingJobName, "InProgress", "Starting")
        return {"TrainingJobArn": f"arn:aws:sagemaker:eu-west-1:123456789012:training-job/{TrainingJobName}"}

    def describe_training_job(self, TrainingJobName):
        if TrainingJobName not in self.jobs:
            raise self._refused("describe_training_job", "ValidationException", "Requested resource not found.")
        return self._told(TrainingJobName)

    def stop_training_job(self, TrainingJobName):
        if self.jobs[TrainingJobName]["TrainingJobStatus"] != "InProgress":
            raise self._refused("stop_training_job", "ValidationException", "the training job is in status Stopped")
        self.move(TrainingJobName, "Stopping", "Stopping")
        return {}

    def list_training_jobs(self, NameContains="", **_):
        fitting = [name for name in reversed(self.jobs) if NameContains in name]
        listed = [
            {
                "TrainingJobName": name,
                "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/x",
                "CreationTime": MOMENT,
                "TrainingJobStatus": self.jobs[name]["TrainingJobStatus"],
            }
            for name in fitting
        ]
        return {"TrainingJobSummaries": listed}

    def search(self, **_):
        return {"Results": [{"TrainingJob": self._told(name)} for name in self.jobs]}

    def _told(self, name):
        told = ("TrainingJobStatus", "SecondaryStatus", "SecondaryStatusTransitions", "FailureReason", "CreationTime")
        job = self.jobs[name]
        arn = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/x"
        given = ("AlgorithmSpecification", "ResourceConfig", "StoppingCondition", "HyperParameters")
        return {
            "TrainingJobName": name,
            "TrainingJobArn": arn,
            "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/output/x"},
            **{key: job[key] for key in (*told, *given) if key in job},
        }

    def _refused(self, operation, word, message):
        return self._refusal(operation, {"Error": {"Code": word, "Message": message}})


@pytest.fixture
def service():
    job = submission(**TARGET)
    target = SageMaker(job.settings)
    target._sagemaker = fake = Fake(job.settings)
    return target, job, fake


def rendered(job):
    (request,) = SageMaker(job.settings).render(job)
    return json.loads(request.body)


def work_of(request):
    return opened("".join(text for _, text in sorted(request["HyperParameters"].items())))


def test_a_two_node_job_as_sagemaker_is_asked_for_it():
    job = submission(**TARGET, walltime="1d")
    request = rendered(job)
    assert request["TrainingJobName"] == job.token
    assert request["ResourceConfig"] == {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100}
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 20}
    assert work_of(request).text() == replace(job.work, cwd="/app").text()


def test_spot_machines_checkpoints_and_data():
    data = [
        {"source": "s3://bucket/corpus", "path": "/opt/ml/input/data/corpus"},
        {"source": "lustre:fs-0123456789abcdef0:/x", "path": "/opt/ml/input/data/lustre"},
    ]
    more = {"spot": True, "walltime": "2h", "wait": "6h", "checkpoints": "s3://bucket/ck", "mounts": data}
    network = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}
    request = rendered(submission(**TARGET | more | network | {"runs": "/opt/ml/checkpoints"}))
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 21600}
    assert request["CheckpointConfig"] == {"S3Uri": "s3://bucket/ck", "LocalPath": "/opt/ml/checkpoints"}
    assert [channel["ChannelName"] for channel in request["InputDataConfig"]] == ["corpus", "lustre"]
    assert work_of(request).job.folder.startswith("/opt/ml/checkpoints/quickstart-")


def test_hostile_values_travel_as_data():
    environment = hostile()
    request = rendered(submission(**TARGET, environment=environment))
    assert work_of(request).environment == environment
    plain = rendered(submission(**TARGET))
    named = ("HyperParameters", "TrainingJobName", "Tags")
    assert {k: v for k, v in request.items() if k not in named} == {k: v for k, v in plain.items() if k not in named}


def test_a_job_of_many_parts_is_whole():
    value = os.urandom(20_000).hex()
    request = rendered(submission(**TARGET, environment={"VALUE": value}))
    assert len(request["HyperParameters"]) > 10
    assert work_of(request).environment == {"VALUE": value}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"role": None, "output": None}, "role, output missing"),
        ({"role": "nobody"}, "RoleArn"),
        ({"accelerator": "ml.nope"}, "InstanceType is one of"),
        ({"output": "bucket"}, "S3OutputPath matches"),
        ({"image": None}, "image is missing"),
        ({"runs": "/opt/ml/checkpoints"}, "goes with the container"),
        ({"secrets": {"KEY": "arn:aws:ssm:x"}}, "secrets.KEY is file:PATH"),
        ({"mounts": [{"source": "s3://x/y", "path": "/data"}]}, "/opt/ml/input/data/NAME"),
        ({"mounts": [{"source": "nfs:x", "path": "/opt/ml/input/data/x"}]}, "is no s3://"),
        ({"spot": True, "walltime": "2h", "wait": "1h"}, "wait is 3600 s"),
        ({"walltime": 0.1}, "MaxRuntimeInSeconds is at least 1"),
        ({"extras": {"EnableNetworkIsolation": "yes"}}, "EnableNetworkIsolation is a boolean"),
        ({"extras": {"RoleArn": "x"}}, "follows from the job's description"),
        ({"environment": {"VALUE": os.urandom(200_000).hex()}}, "a request of SageMaker"),
    ],
)
def test_what_sagemaker_would_refuse_is_told_before_it_is_asked(changed, said):
    with pytest.raises(Failure, match=said) as refused:
        rendered(submission(**TARGET | changed))
    assert refused.value.outcome.code is Exit.BAD_RECIPE


def test_all_mistakes_are_told_at_once():
    with pytest.raises(Failure) as refused:
        rendered(submission(**TARGET | {"role": "x", "accelerator": "ml.nope", "output": "x"}))
    cause = refused.value.outcome.cause
    assert all(name in cause for name in ("RoleArn", "InstanceType", "S3OutputPath"))


@pytest.mark.parametrize(
    ("status", "second", "state"),
    [
        ("InProgress", "Starting", State.PENDING),
        ("InProgress", "Pending", State.PENDING),
        ("InProgress", "Downloading", State.PENDING),
        ("InProgress", "Training", State.RUNNING),
        ("InProgress", "Uploading", State.RUNNING),
        ("InProgress", "Interrupted", State.REQUEUED),
        ("InProgress", "Restarting", State.REQUEUED),
        ("InProgress", "a new word", State.RUNNING),
        ("Stopping", "Stopping", State.STOPPING),
        ("Stopped", "Stopped", State.CANCELLED),
        ("Stopped", "MaxRuntimeExceeded", State.FAILED),
        ("Stopped", "MaxWaitTimeExceeded", State.FAILED),
        ("Completed", "Completed", State.SUCCEEDED),
        ("Failed", "Failed", State.FAILED),
    ],
)
def test_what_sagemaker_says_of_a_job(status, second, state):
    seen = seen_from({"TrainingJobStatus": status, "SecondaryStatus": second})
    assert (seen.state, seen.native) == (state, status if second == status else f"{status}/{second}")


def test_a_job_that_lost_its_machines_goes_on_fails_and_is_started_again(service):
    target, job, fake = service
    assert target.find(job) is None
    native = target.submit(job)
    assert (native, target.submit(job), target.find(job)) == (job.token,) * 3  # sent twice, there is one
    assert len(fake.jobs) == 1
    for second in ("Training", "Interrupted", "Starting", "Training"):
        fake.move(native, "InProgress", second)
    seen = target.look(job, native)
    assert (seen.state, seen.attempt, seen.began) == (State.RUNNING, 1, MOMENT.timestamp())
    with pytest.raises(Failure, match="is running"):
        target.requeue(job, native)
    fake.move(native, "Failed", "Failed", FailureReason="AlgorithmError: exit code 84: drivetrain: 84 a hang: rank 3")
    failed = target.look(job, native)
    assert (failed.state, failed.code) == (State.FAILED, 84)
    again = target.requeue(job, native)
    assert again != native
    assert target.find(job) == again
    assert {one.token for one in target.listed()} == {job.token}


def test_a_cancelled_job_stays_so(service):
    target, job, fake = service
    native = target.submit(job)
    target.cancel(job, native)
    assert target.look(job, native).state is State.STOPPING
    fake.move(native, "Stopped", "Stopped")
    target.cancel(job, native)
    assert target.look(job, native).state is State.CANCELLED
    assert target.look(job, "another").native == "unknown to the engine"


def test_a_refusal_is_no_answer_that_is_waited_for(service):
    _, _, fake = service
    assert isinstance(fake._refused("x", "AccessDeniedException", "no"), Refused)
    busy = fake._refused("x", "ThrottlingException", "slower")
    assert (busy.outcome.code, isinstance(busy, Refused)) == (Exit.PEER_UNAVAILABLE, False)


def test_logs_are_those_of_the_ranks_machine_in_the_order_of_its_starts(service, monkeypatch):
    target, job, _ = service
    prefixes = []

    def answer(operation, **request):
        if operation == "describe_log_streams":
            prefixes.append(request["logStreamNamePrefix"])
            starts = (("second", 2), ("first", 1))
            return {"logStreams": [{"logStreamName": name, "firstEventTimestamp": at} for name, at in starts]}
        events = [] if "nextToken" in request else [{"message": request["logStreamName"]}]
        return {"events": events, "nextForwardToken": "end"}

    monkeypatch.setattr(AwsService, "__call__", lambda self, operation, **request: answer(operation, **request))
    assert list(target.logs(job, "name", 5, follow=False)) == ["first", "second"]
    assert prefixes == ["name/algo-2-"]


def test_hosts_are_nodes_in_the_order_of_their_numbers():
    hosts = {"hosts": ["algo-10", "algo-2", "algo-1"], "current_host": "algo-10"}
    told = {"DRIVETRAIN_NODE": "2", "DRIVETRAIN_NODES": "3", "DRIVETRAIN_ADDRESS": "algo-1"}
    assert variables(hosts) == told


def given(tmp_path, work):
    """What SageMaker lays into a container."""
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    request = {"part-00": packed(work)[:1000], "part-01": packed(work)[1000:]}
    (tmp_path / "config" / "hyperparameters.json").write_text(json.dumps(request))
    (tmp_path / "config" / "resourceconfig.json").write_text(
        json.dumps({"hosts": ["algo-1", "algo-2"], "current_host": "algo-2"})
    )


def test_a_container_runs_the_worker_and_leaves_why_it_failed(tmp_path):
    work = replace(submission(**TARGET).work, cwd=str(tmp_path / "gone"))
    given(tmp_path, work)
    code = "import sys, pathlib; from drivetrain.launch.targets import sagemaker as it"
    start = f"{code}; sys.exit(it.main(*map(pathlib.Path, sys.argv[1:])))"
    command = [sys.executable, "-c", start, str(tmp_path), str(tmp_path / "output")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, "gone is not there" in ended.stderr) == (66, True)
    assert (tmp_path / "output" / "failure").read_text() == "exit code 66: see its log"


def test_the_reason_is_that_of_the_run(tmp_path, monkeypatch):
    work = submission(**TARGET).work
    run = tmp_path / "run"
    run.mkdir()
    outcome = Outcome(code=Exit.DIVERGED, cause="loss is nan", where={})
    (run / "exit.json").write_text(json.dumps(outcome.to_json()))
    given(tmp_path, replace(work, job=replace(work.job, folder=str(run))))
    monkeypatch.setattr(sagemaker, "run_worker", lambda *_: 82)
    assert main(tmp_path, tmp_path / "output") == 82
    told = (tmp_path / "output" / "failure").read_text()
    assert "loss is nan" in told
    assert seen_from({"TrainingJobStatus": "Failed", "FailureReason": f"AlgorithmError: {told}"}).code == 82


def test_what_a_job_was_told_is_read_back_from_the_service(service):
    target, job, _ = service
    assert target.work(target.submit(job)).text() == replace(job.work, cwd="/app").text()
