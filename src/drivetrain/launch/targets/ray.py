"""Jobs of a Ray cluster, by the HTTP of its Jobs API: a driver there places one process on each of several machines."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from pydantic import StringConstraints

from drivetrain.launch.patience import followed
from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.container import moved
from drivetrain.launch.targets.ray_driver import NEEDS, PARCEL, prefix_of
from drivetrain.launch.targets.recipe import ResourceSpec, Text, mebibytes
from drivetrain.launch.targets.remote import (
    Refused,
    away,
    packed,
    parcelled,
    renamed,
    require_ended,
    require_short,
    token_of,
    with_extras,
    wrong,
)
from drivetrain.launch.targets.shared import require_files, require_shared
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.settings import Count, nothing

LONGEST = 120_000
"""Bytes of a parcel: one environment variable has 128 KiB."""
STATES: Mapping[str, State] = {
    "PENDING": State.PENDING,
    "RUNNING": State.RUNNING,
    "STOPPED": State.CANCELLED,
    "SUCCEEDED": State.SUCCEEDED,
    "FAILED": State.FAILED,
}
_LATER = (429, 502, 503, 504)
_POLL = 2.0  # seconds between two looks at the logs


@dataclass(frozen=True, kw_only=True)
class RayTarget(ResourceSpec):
    """A Ray cluster, by its Jobs API; all its machines have drivetrain and see the run directories."""

    unused: ClassVar[tuple[str, ...]] = ("image", "mounts", "walltime", "queue", "namespace", "role", "fruitless")
    factory: ClassVar[str] = "drivetrain.launch.targets.ray:Ray"
    kind: Annotated[Literal["ray"], nothing("Ray's Jobs API")] = "ray"
    address: Annotated[
        Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$")], nothing("the dashboard's URL")
    ] = "http://127.0.0.1:8265"
    folder: Annotated[
        Text | None, nothing("where the folder that you submit from lies on the cluster; null: at the same place")
    ] = None
    grace: Annotated[Count, nothing("seconds from SIGTERM to SIGKILL: a commit must fit")] = 120
    timeout: Annotated[Count, nothing("seconds that one call may take")] = 30


class Ray:
    """A submission whose id is the job's token, or that and a suffix where it was asked for again."""

    def __init__(self, settings: RayTarget) -> None:
        self._settings = settings

    def render(self, job: Submission) -> Sequence[Request]:
        """The request: the command line is the same for every job, what is particular to one is in the environment."""
        return [Request("POST /api/jobs/", json.dumps(_request(job, self._settings, job.token), indent=2))]

    def submit(self, job: Submission) -> str:
        """Send the request; where its id is taken, that is the job."""
        return self._send(job, job.token)

    def find(self, job: Submission) -> str | None:
        """The newest submission of this token."""
        ours = [one for one in self._known() if token_of(one["submission_id"]) == job.token]
        if not ours:
            return None
        return max(ours, key=lambda one: one.get("start_time") or 0)["submission_id"]

    def look(self, job: Submission, native: str) -> JobStatus:
        """From the submission's details; the code is the driver's."""
        told = self._get(native)
        if told is None:
            return UNKNOWN
        return seen_from(told)

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """What the driver and the first node, or for a rank its node, have printed; each look fetches all of it."""
        node = 0
        if rank is not None:
            node = rank // self._settings.processes
        given, over = 0, not follow

        def ended() -> bool:
            nonlocal over
            over = self.look(job, native).state.final
            return over

        def new() -> Iterator[str]:
            nonlocal given
            text = self._ask("GET", f"{_place(native)}/logs").get("logs", "")
            # A line under way comes whole with the next look, unless the job is over.
            whole = text if over else text[: text.rfind("\n") + 1]
            begin, given = given, len(whole)
            return _of_node(whole[begin:], node, driver=rank is None)

        return followed(ended if follow else None, new, _POLL)

    def cancel(self, job: Submission, native: str) -> None:
        """The driver gets SIGTERM and passes it on; Ray starts nothing again by itself."""
        self._ask("POST", f"{_place(native)}/stop")

    def requeue(self, job: Submission, native: str) -> str:
        """Another submission on the same run, once this one has ended."""
        require_ended(job, self.look(job, native))
        return self._send(job, renamed(job.token))

    def listed(self) -> Sequence[Listed]:
        """Submissions with our mark."""
        jobs = []
        for one in self._known():
            if "drivetrain" in (one.get("metadata") or {}):
                name = one["submission_id"]
                jobs.append(Listed(token_of(name), name, seen_from(one)))
        return jobs

    def work(self, native: str) -> NodeWork:
        """From the variable that the submission carries it in."""
        told = self._get(native) or {}
        return parcelled(told.get("runtime_env", {}).get("env_vars", {}).get(PARCEL), native)

    def reachable(self) -> str:
        """Ray's version."""
        return f"Ray {self._ask('GET', '/api/version')['ray_version']} at {self._settings.address}"

    def _send(self, job: Submission, name: str) -> str:
        try:
            self._ask("POST", "/api/jobs/", _request(job, self._settings, name))
        except Refused:
            if self._get(name) is None:  # else it was sent before, and its answer lost
                raise
        return name

    def _known(self) -> list[dict[str, Any]]:
        return [one for one in self._ask("GET", "/api/jobs/") if one.get("submission_id")]

    def _get(self, native: str) -> dict[str, Any] | None:
        try:
            return self._ask("GET", _place(native))
        except Refused as refused:
            if refused.word != "404":
                raise
            return None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to one request. Raises Failure: 69 where none comes in time, Refused (78)."""
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("RAY_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        data = json.dumps(body).encode() if body is not None else None
        request = HttpRequest(f"{self._settings.address.rstrip('/')}{path}", data, headers, method=method)
        try:
            with urlopen(request, timeout=self._settings.timeout) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                said = " ".join(error.read(2_000).decode(errors="replace").split())
            # Ray answers with a traceback, whose end says what is wrong.
            cause = f"Ray: {method} {path}: {error.code}: {said[-500:]}"
            if error.code in _LATER:
                raise away(cause) from error
            raise Refused(cause, str(error.code)) from error
        except (URLError, TimeoutError, ConnectionError, ValueError) as error:
            raise away(f"Ray: {self._settings.address}: {error}") from error


def _request(job: Submission, settings: RayTarget, name: str) -> dict[str, Any]:
    """The request for a submission of this id; Failure(78) for what Ray cannot be brought."""
    require_files(job)
    if settings.code.kind != "as_it_stands":
        raise wrong(job, f"code.kind {settings.code.kind} is not brought to Ray", "have it there, and set folder")
    require_shared(job)
    parcel = packed(moved(job) if settings.folder is not None else job.work)
    require_short(job, len(parcel), LONGEST, "a variable")
    needs: dict[str, float] = {"CPU": settings.cpus or settings.processes}
    if settings.accelerators:
        needs["GPU"] = settings.accelerators
    if settings.memory:
        needs["memory"] = mebibytes(settings.memory) << 20
    if settings.accelerator:
        # A machine has one unit of its accelerator's name: a thousandth asks for the machine, not for a share of it.
        needs[f"accelerator_type:{settings.accelerator}"] = 0.001
    variables = {
        PARCEL: parcel,
        NEEDS: json.dumps(needs),
        # Ray would print a line that several nodes have only once.
        "RAY_DEDUP_LOGS": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": str(settings.grace),
    }
    ours = {
        "submission_id": name,
        "entrypoint": f"{shlex.quote(settings.python or 'python')} -m drivetrain.launch.targets.ray_driver",
        "runtime_env": {"env_vars": variables},
        "metadata": {"drivetrain": job.token},
    }
    return with_extras(job, ours)


def seen_from(told: Mapping[str, Any]) -> JobStatus:
    """What the details of a submission say."""
    word, message = told["status"], told.get("message") or ""
    state = STATES.get(word, State.RUNNING)
    began = None
    if told.get("start_time"):
        began = told["start_time"] / 1000
    if not state.final:
        return JobStatus(state=state, native=word, began=began)
    reason = " ".join(message.split())[:500]
    return JobStatus(state=state, native=word, reason=reason, code=told.get("driver_exit_code"), began=began)


def _place(native: str) -> str:
    return f"/api/jobs/{quote(native, safe='')}"


def _of_node(text: str, node: int, *, driver: bool) -> Iterator[str]:
    """The lines of one node, without Ray's prefix, and where asked for the driver's own."""
    for line in text.splitlines():
        number, rest = prefix_of(line)
        if number == node or (number is None and driver):
            yield rest
