"""Jobs of AWS Batch: requests against the service's own model, and their life on moto's stand-in for the service."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from botocore.session import get_session

from drivetrain.launch.states import State
from drivetrain.launch.targets import aws_batch
from drivetrain.launch.targets.aws import AwsService, mistakes
from drivetrain.launch.targets.aws_batch import RULES, AwsBatch, seen_from, variables
from drivetrain.launch.targets.container import WORTH_AGAIN
from drivetrain.launch.targets.remote import packed, unpacked
from drivetrain.spec.exits import Exit, Failure
from submissions import hostile, opened, submission

TARGET = {
    "kind": "aws-batch",
    "nodes": 2,
    "processes": 2,
    "cpus": 4,
    "memory": "16G",
    "image": "registry.example/train:1",
    "queue": "main",
    "region": "eu-west-1",
    "runs": "s3://bucket/runs",
    "folder": "/app",
}


def rendered(job):
    return [json.loads(request.body) for request in AwsBatch(job.settings).render(job)]


def parcel_of(request):
    override = request["nodeOverrides"]["nodePropertyOverrides"][0]["containerOverrides"]
    return override["environment"][0]["value"]


def test_a_two_node_job_as_batch_is_asked_for_it():
    job = submission(
        **TARGET, secrets={"KEY": "arn:aws:ssm:eu-west-1:1:parameter/key"}, execution_role="arn:aws:iam::1:role/x"
    )
    definition, request = rendered(job)
    nodes = definition["nodeProperties"]
    container = nodes["nodeRangeProperties"][0]["container"]
    assert (definition["type"], nodes["numNodes"], nodes["mainNode"]) == ("multinode", 2, 0)
    assert container["command"] == ["python", "-m", "drivetrain.launch.targets.aws_batch"]
    assert container["resourceRequirements"] == [{"type": "VCPU", "value": "4"}, {"type": "MEMORY", "value": "16384"}]
    assert container["secrets"] == [{"name": "KEY", "valueFrom": "arn:aws:ssm:eu-west-1:1:parameter/key"}]
    assert request["jobName"] == job.token
    assert request["jobDefinition"] == definition["jobDefinitionName"]
    work = opened(parcel_of(request))
    assert work.text() == replace(job.work, cwd="/app").text()
    assert work.job.recipe["checkpoint"]["mirror"].startswith("s3://bucket/runs/quickstart-")


def test_jobs_of_one_target_share_a_definition():
    (one, _), (other, _) = rendered(submission(**TARGET)), rendered(submission(["seed=3"], **TARGET))
    assert one == other
    assert rendered(submission(**TARGET | {"memory": "32G"}))[0]["jobDefinitionName"] != one["jobDefinitionName"]


def test_hostile_values_travel_as_data():
    environment = hostile()
    definition, request = rendered(submission(**TARGET, environment=environment))
    assert opened(parcel_of(request)).environment == environment
    assert definition == rendered(submission(**TARGET))[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image": None}, "image is missing"),
        ({"runs": "/here"}, "goes with the container"),
        ({"code": {"kind": "archive"}}, "cannot be brought"),
        ({"cpus": None}, "cpus and memory"),
        ({"queue": None}, "no queue"),
        ({"secrets": {"KEY": "arn:aws:ssm:x"}}, "execution_role"),
        ({"mounts": [{"source": "s3://x", "path": "/data"}]}, "neither efs"),
        ({"walltime": 30}, "walltime of 30 s"),
        ({"extras": {"nope": 1}}, "nope is unknown"),
        ({"extras": {"jobName": "x"}}, "follows from the job's description"),
        ({"environment": {"VALUE": os.urandom(20_000).hex()}}, "a request of Batch"),
    ],
)
def test_what_batch_would_refuse_is_told_before_it_is_asked(changed, said):
    with pytest.raises(Failure, match=said) as refused:
        rendered(submission(**TARGET | changed))
    assert refused.value.outcome.code is Exit.BAD_RECIPE


def test_a_run_directory_on_a_mount_needs_no_mirror():
    mount = {"source": "efs:fs-01234567:/runs", "path": "/runs", "read_only": False}
    definition, _ = rendered(submission(**TARGET | {"runs": "/runs", "mounts": [mount]}))
    container = definition["nodeProperties"]["nodeRangeProperties"][0]["container"]
    assert container["mountPoints"] == [{"sourceVolume": "data-0", "containerPath": "/runs", "readOnly": False}]
    assert container["volumes"][0]["efsVolumeConfiguration"]["rootDirectory"] == "/runs"


def test_only_ends_that_are_worth_it_are_tried_again():
    def action(exit_code="", status_reason=""):
        """As Batch reads its rules: the first that fits."""
        told = {"onExitCode": exit_code, "onStatusReason": status_reason, "onReason": ""}
        for rule in RULES:
            ((name, pattern),) = ((name, pattern) for name, pattern in rule.items() if name != "action")
            if told[name] == pattern or (pattern.endswith("*") and told[name].startswith(pattern[:-1])):
                return rule["action"]
        return "RETRY"

    assert len(RULES) <= 5
    assert action("69") == action("137", "Host EC2 (instance i-1) terminated.") == "RETRY"
    assert {action(str(int(code))) for code in Exit if code not in (Exit.DONE, Exit.PEER_UNAVAILABLE)} == {"EXIT"}


@pytest.mark.parametrize(
    ("detail", "state", "attempt", "code"),
    [
        ({"status": "SUBMITTED"}, State.PENDING, 0, None),
        ({"status": "RUNNABLE"}, State.PENDING, 0, None),
        ({"status": "STARTING"}, State.PENDING, 0, None),
        ({"status": "RUNNING", "startedAt": 5000}, State.RUNNING, 0, None),
        ({"status": "RUNNABLE", "attempts": [{"container": {"exitCode": 69}}]}, State.REQUEUED, 1, None),
        ({"status": "RUNNING", "attempts": [{}, {}]}, State.RUNNING, 2, None),
        ({"status": "RUNNING", "isTerminated": True}, State.STOPPING, 0, None),
        ({"status": "FAILED", "isTerminated": True, "attempts": [{}]}, State.CANCELLED, 0, None),
        ({"status": "FAILED", "isCancelled": True}, State.CANCELLED, 0, None),
        ({"status": "FAILED", "attempts": [{}, {"container": {"exitCode": 78}}]}, State.FAILED, 1, 78),
        ({"status": "SUCCEEDED", "container": {"exitCode": 0}, "attempts": [{}]}, State.SUCCEEDED, 0, 0),
        ({"status": "SUCCEEDED", "isTerminated": True}, State.SUCCEEDED, 0, None),
    ],
)
def test_what_batch_says_of_a_job(detail, state, attempt, code):
    seen = seen_from(detail)
    assert (seen.state, seen.attempt, seen.code, seen.native) == (state, attempt, code, detail["status"])


@pytest.fixture
def batch(monkeypatch, request):
    """A target on moto's stand-in, which keeps jobs waiting, or where asked for has them done at once."""
    from moto import mock_aws
    from moto.moto_api import state_manager

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws(config={"batch": {"use_docker": not hasattr(request, "param")}}):
        state_manager.set_transition("batch::job", {"progression": "manual", "times": 100})
        job = submission(**TARGET)
        target = AwsBatch(job.settings)
        role = AwsService("iam", job.settings)("create_role", RoleName="batch", AssumeRolePolicyDocument="{}")["Role"][
            "Arn"
        ]
        asked = {"computeEnvironmentName": "all", "type": "UNMANAGED", "serviceRole": role}
        compute = target._batch("create_compute_environment", **asked)
        order = [{"order": 1, "computeEnvironment": compute["computeEnvironmentArn"]}]
        target._batch(
            "create_job_queue", jobQueueName="main", state="ENABLED", priority=1, computeEnvironmentOrder=order
        )
        yield target, job
        state_manager.unset_transition("batch::job")


def test_a_waiting_job_is_found_by_its_token_and_cancelled(batch):
    target, job = batch
    assert target.find(job) is None
    native = target.submit(job)
    assert target.find(job) == native
    assert target.look(job, native).state is State.PENDING
    with pytest.raises(Failure, match="is pending"):
        target.requeue(job, native)
    target.cancel(job, native)
    assert target.look(job, native).reason == "cancelled by its user"
    assert target.look(job, "gone").native == "unknown to the engine"
    assert "queue main ENABLED" in target.reachable()


@pytest.mark.parametrize("batch", ["done"], indirect=True)
def test_a_job_that_has_ended_is_started_again_from_the_same_definition(batch):
    target, job = batch
    native = target.submit(job)
    assert target.look(job, native).state is State.SUCCEEDED
    again = target.requeue(job, native)
    assert again != native
    known = target._batch("describe_job_definitions")["jobDefinitions"]
    assert [one["revision"] for one in known] == [1]
    assert {one.token for one in target.listed()} == {job.token}


def test_logs_of_all_attempts_of_a_ranks_node(batch, monkeypatch):
    target, job = batch
    logs = target._logs
    logs("create_log_group", logGroupName="/aws/batch/job")
    for stream in ("first", "second"):
        logs("create_log_stream", logGroupName="/aws/batch/job", logStreamName=stream)
        events = [
            {"timestamp": int(time.time() * 1000) + number, "message": f"{stream} {number}"} for number in range(2)
        ]
        logs("put_log_events", logGroupName="/aws/batch/job", logStreamName=stream, logEvents=events)
    asked = []

    def described(operation, jobs):
        asked.extend(jobs)
        attempts = [{"container": {"logStreamName": name}} for name in ("first", "second", "not there yet")]
        return {"jobs": [{"status": "RUNNING", "attempts": attempts, "container": {}}]}

    monkeypatch.setattr(target, "_batch", described)
    assert list(target.logs(job, "id", 3, follow=False)) == ["first 0", "first 1", "second 0", "second 1"]
    assert asked == ["id#1"]


def test_a_service_that_does_not_answer_is_told_so(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    job = submission(**TARGET, endpoint="http://127.0.0.1:9")
    with pytest.raises(Failure) as failed:
        AwsBatch(job.settings).find(job)
    assert failed.value.outcome.code is Exit.PEER_UNAVAILABLE


def test_a_queue_that_is_not_there_is_refused(batch):
    _, job = batch
    job = replace(job, settings=replace(job.settings, queue="other"))
    with pytest.raises(Failure) as refused:
        AwsBatch(job.settings).submit(job)
    assert refused.value.outcome.code in (Exit.BAD_RECIPE, Exit.PEER_UNAVAILABLE)


def test_the_main_node_says_its_own_address_and_the_others_are_told_it():
    main = {"AWS_BATCH_JOB_ATTEMPT": "2", "AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"}
    assert set(variables(main)) == {"DRIVETRAIN_ATTEMPT", "DRIVETRAIN_ADDRESS"}
    assert variables(main | {"AWS_BATCH_JOB_NODE_INDEX": "1"}) == {"DRIVETRAIN_ATTEMPT": "1"}


def test_a_container_ends_with_the_workers_code_and_69_for_what_is_worth_another_attempt(tmp_path, monkeypatch):
    job = submission(**TARGET)
    work = replace(job.work, cwd=str(tmp_path / "gone"), folder=str(tmp_path))
    told = {"AWS_BATCH_JOB_ATTEMPT": "1", "AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"}
    others = {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "127.0.0.1"}
    environment = {**os.environ, **told, **others, "DRIVETRAIN_PARCEL": packed(work)}
    ended = subprocess.run(
        [sys.executable, "-m", "drivetrain.launch.targets.aws_batch"], env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, "gone is not there" in ended.stderr) == (66, True)
    monkeypatch.setattr(aws_batch, "run_worker", lambda *_: WORTH_AGAIN[-1])
    for name, value in {**told, "DRIVETRAIN_PARCEL": packed(work)}.items():
        monkeypatch.setenv(name, value)
    assert aws_batch.main() == 69


def test_a_damaged_parcel_is_told():
    with pytest.raises(Failure, match="damaged"):
        unpacked(packed(submission(**TARGET).work)[:-8])


@pytest.mark.parametrize("by", ["job", "node"])
def test_what_a_job_was_told_is_read_back_from_its_description(monkeypatch, by):
    """moto leaves variables out; the answer is held against the service's model."""
    job = submission(**TARGET)
    container = {
        "environment": [{"name": "OTHER", "value": "x"}, {"name": "DRIVETRAIN_PARCEL", "value": packed(job.work)}]
    }
    ranges = [{"targetNodes": "0:", "container": container}]
    properties = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": ranges}
    more = {"nodeProperties": properties} if by == "job" else {"container": container}
    told = {"jobName": "x", "jobId": "id", "jobQueue": "q", "status": "RUNNING", "startedAt": 1, "jobDefinition": "d"}
    answer = {"jobs": [told | more]}
    model = get_session().get_service_model("batch").operation_model("DescribeJobs")
    assert list(mistakes(model.output_shape, answer)) == []
    target = AwsBatch(job.settings)
    monkeypatch.setattr(target, "_batch", lambda *_, **__: answer)
    assert target.work("id").text() == job.work.text()
    answer["jobs"].clear()
    with pytest.raises(Failure, match="keeps nothing of id"):
        target.work("id")
