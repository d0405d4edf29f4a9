"""Jobs of a Ray cluster: requests to a stand-in for its dashboard, and what its driver makes of how nodes end."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drivetrain.launch import jobs
from drivetrain.launch.elsewhere import found
from drivetrain.launch.states import UNKNOWN, State
from drivetrain.launch.store import JobStore
from drivetrain.launch.targets import ray_driver
from drivetrain.launch.targets.ray import Ray, seen_from
from drivetrain.launch.targets.ray_driver import Driver, prefix_of
from drivetrain.launch.targets.remote import renamed, token_of
from drivetrain.spec.exits import Exit, Failure
from submissions import hostile, opened, submission

TARGET = {"kind": "ray", "nodes": 2, "processes": 2, "accelerators": 2, "memory": "8G", "accelerator": "A100"}


class Dashboard(BaseHTTPRequestHandler):
    """What Ray 2.60 answers, its refusals with their statuses."""

    jobs: dict
    seen: list

    def do_GET(self):
        self.answer(None)

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"null"))

    def answer(self, body):
        self.seen.append(self.headers.get("authorization"))
        status, told = self.found(body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(told.encode() if isinstance(told, str) else json.dumps(told).encode())

    def found(self, body):
        name = self.path.removeprefix("/api/jobs/").partition("/")[0]
        if self.path == "/api/version":
            return 200, {"version": "4", "ray_version": "2.60.0"}
        if self.path == "/api/jobs/" and body is None:
            driver = {"type": "DRIVER", "submission_id": None, "status": "RUNNING"}
            return 200, [driver, *self.jobs.values()]
        if self.path == "/api/jobs/":
            if body["submission_id"] in self.jobs:
                return 500, f"Traceback: ValueError: Job with submission_id {body['submission_id']} already exists"
            start = {"status": "PENDING", "start_time": 1000 + len(self.jobs)}
            self.jobs[body["submission_id"]] = body | start
            return 200, {"submission_id": body["submission_id"]}
        if name not in self.jobs:
            return 404, "Job does not exist"
        if self.path.endswith("/stop"):
            self.jobs[name]["status"] = "STOPPED"
            return 200, {"stopped": True}
        if self.path.endswith("/logs"):
            return 200, {"logs": self.jobs[name].get("logs", "")}
        return 200, self.jobs[name]

    def log_message(self, *_):
        pass


@pytest.fixture
def dashboard():
    handler = type("Here", (Dashboard,), {"jobs": {}, "seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.address = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def there(dashboard):
    job = submission(**TARGET, address=dashboard.address)
    return Ray(job.settings), job


def rendered(job):
    (request,) = Ray(job.settings).render(job)
    return json.loads(request.body)


def test_a_two_node_job_as_ray_is_asked_for_it():
    job = submission(**TARGET, folder="/srv/train", python="/opt/my python/bin/python")
    request = rendered(job)
    assert request["submission_id"] == job.token
    assert request["entrypoint"] == "'/opt/my python/bin/python' -m drivetrain.launch.targets.ray_driver"
    variables = request["runtime_env"]["env_vars"]
    needs = {"CPU": 2, "GPU": 2, "memory": 8 << 30, "accelerator_type:A100": 0.001}
    assert json.loads(variables["DRIVETRAIN_NEEDS"]) == needs
    assert opened(variables["DRIVETRAIN_PARCEL"]).text() == replace(job.work, cwd="/srv/train").text()


def test_hostile_values_travel_as_data():
    environment = hostile()
    request = rendered(submission(**TARGET, environment=environment))
    assert opened(request["runtime_env"]["env_vars"].pop("DRIVETRAIN_PARCEL")).environment == environment
    plain = rendered(submission(**TARGET))
    del plain["runtime_env"]["env_vars"]["DRIVETRAIN_PARCEL"]
    assert request["runtime_env"] == plain["runtime_env"]
    assert request["entrypoint"] == plain["entrypoint"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image": "x"}, "image means nothing"),
        ({"runs": "s3://bucket/runs"}, "on one machine's disk"),
        ({"secrets": {"KEY": "arn:x"}}, "secrets.KEY is file:PATH"),
        ({"extras": {"entrypoint": "rm"}}, "follows from the job's description"),
        ({"address": "file:///etc/passwd"}, "address"),
    ],
)
def test_what_ray_cannot_do_is_told_before_it_is_asked(changed, said):
    with pytest.raises(Exception, match=said):
        rendered(submission(**TARGET | changed))


def test_a_job_is_sent_once_stopped_and_started_again_under_another_name(there, dashboard):
    target, job = there
    assert target.find(job) is None
    assert (target.submit(job), target.submit(job), target.find(job)) == (job.token,) * 3
    assert len(dashboard.jobs) == 1
    assert target.look(job, job.token).state is State.PENDING
    with pytest.raises(Failure, match="is pending"):
        target.requeue(job, job.token)
    target.cancel(job, job.token)
    assert target.look(job, job.token).state is State.CANCELLED
    again = target.requeue(job, job.token)
    assert again != job.token
    assert target.find(job) == again
    assert {one.token for one in target.listed()} == {job.token}
    assert target.look(job, "another") == UNKNOWN
    assert target.reachable().startswith("Ray 2.60.0")


def test_a_token_is_shown_to_the_dashboard(there, dashboard, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "canary")
    target, _ = there
    target.reachable()
    assert dashboard.seen == ["Bearer canary"]


def test_a_dashboard_that_is_away_or_refuses(there, dashboard):
    target, job = there
    with pytest.raises(Failure) as refused:
        target.cancel(job, "another")
    assert refused.value.outcome.code is Exit.BAD_RECIPE
    away = replace(job.settings, address="http://127.0.0.1:9")
    with pytest.raises(Failure) as failed:
        Ray(away).find(job)
    assert failed.value.outcome.code is Exit.PEER_UNAVAILABLE


def test_logs_are_those_of_the_ranks_node_without_rays_prefix(there, dashboard):
    target, job = there
    native = target.submit(job)
    dashboard.jobs[native]["logs"] = (
        "driver\n\x1b[36m(node-0 pid=7)\x1b[0m first\n(node-1 pid=8, ip=10.0.0.2) second\n(node-1 pid=8) \n"
    )
    assert list(target.logs(job, native, None, follow=False)) == ["driver", "first"]
    assert list(target.logs(job, native, 3, follow=False)) == ["second", ""]
    dashboard.jobs[native]["status"] = "SUCCEEDED"
    assert list(target.logs(job, native, 0, follow=True)) == ["first"]


@pytest.mark.parametrize(
    ("told", "state", "code"),
    [
        ({"status": "PENDING"}, State.PENDING, None),
        ({"status": "RUNNING", "start_time": 5000}, State.RUNNING, None),
        ({"status": "STOPPED", "driver_exit_code": 75}, State.CANCELLED, 75),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, State.SUCCEEDED, 0),
        ({"status": "FAILED", "driver_exit_code": 78, "message": "entrypoint\nfailed"}, State.FAILED, 78),
    ],
)
def test_what_ray_says_of_a_job(told, state, code):
    seen = seen_from(told)
    assert (seen.state, seen.code, seen.native) == (state, code, told["status"])


@pytest.mark.parametrize(
    ("codes", "whole"),
    [([0, 0], 0), ([69, 75], 69), ([69, 78], 78), ([0, 84], 84), ([82, 69], 82)],
)
def test_what_must_not_be_tried_again_outweighs_what_may(codes, whole):
    assert ray_driver._ended(codes) == whole


@pytest.mark.parametrize(
    ("ends", "attempts", "code"),
    [([0], 1, 0), ([69, 83, 0], 3, 0), ([78], 1, 78), ([69] * 9, 3, 69)],
)
def test_the_driver_tries_again_as_often_as_the_job_may_be(ends, attempts, code, monkeypatch):
    tried = []
    monkeypatch.setattr(Driver, "_pause", lambda self, seconds: None)
    monkeypatch.setattr(Driver, "_attempt", lambda self, number: tried.append(number) or ends[number])
    assert Driver(submission(**TARGET, retries=2).work.text(), {}).run() == code
    assert tried == list(range(attempts))


def test_a_driver_that_was_stopped_does_not_try_again(monkeypatch):
    def stopped(self, number):
        self.asked = True
        return 75

    monkeypatch.setattr(Driver, "_attempt", stopped)
    assert Driver(submission(**TARGET).work.text(), {}).run() == 75


def test_names_of_jobs_that_were_sent_again_are_known():
    for name in ("quickstart", "a", "x-r1234"):
        token = submission(**TARGET).token.replace("quickstart", name)
        assert token_of(renamed(token)) == token_of(token) == token


def test_only_what_ray_puts_before_lines_is_a_prefix():
    assert prefix_of("(node-x pid=1) text") == (None, "(node-x pid=1) text")
    assert prefix_of("said (node-1 pid=1) text") == (None, "said (node-1 pid=1) text")


@pytest.fixture
def store(dashboard, tmp_path, monkeypatch):
    """That of another machine, whose target of this cluster asks for less."""
    (tmp_path / "targets.yaml").write_text(json.dumps({"ray": TARGET | {"nodes": 1, "address": dashboard.address}}))
    monkeypatch.setenv("DRIVETRAIN_TARGETS", str(tmp_path / "targets.yaml"))
    return JobStore(tmp_path / "jobs")


def test_a_job_that_was_submitted_elsewhere_is_found_stopped_and_started_again_from_here(there, dashboard, store):
    target, job = there
    native = target.submit(job)
    record = found(store, f"ray:{job.token[-8:]}")
    assert (record.token, record.native, record.run) == (job.token, native, job.run)
    assert jobs.refresh(store, record).state is State.PENDING
    assert jobs.cancel(store, found(store, job.token)).state is State.CANCELLED
    again = jobs.requeue(store, found(store, f"ray:{native}"))
    assert again.native != native
    assert opened(dashboard.jobs[again.native]["runtime_env"]["env_vars"]["DRIVETRAIN_PARCEL"]).nodes == 2
    for name, code in (("ray:nothing", Exit.INPUT_MISSING), ("ray:", Exit.INPUT_MISSING), ("rey:x", Exit.BAD_COMMAND)):
        with pytest.raises(Failure) as failure:
            found(store, name)
        assert failure.value.outcome.code is code


def test_what_an_engine_says_is_a_job_and_is_none_is_not_kept(there, dashboard, store):
    target, job = there
    native = target.submit(job)
    for name in ("../../x", "other-00000000"):
        dashboard.jobs[name] = dashboard.jobs[native] | {"submission_id": name}
    for name, told in (("ray:../../x", "is no job's name"), ("ray:other", "was told to be")):
        with pytest.raises(Failure, match=told) as failure:
            found(store, name)
        assert failure.value.outcome.code is Exit.BAD_DATA
    assert store.all() == []
