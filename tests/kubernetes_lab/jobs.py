"""Indexed Jobs for a cluster that is too old for them: an API in front of its own, and a controller beside its own.

What is here follows the documentation of Kubernetes 1.31: one pod for each index, with a host name; pods that end are
replaced once they have ended, until too many failed; `podFailurePolicy` by exit codes and by disruption;
`successPolicy`. The pods, where and how they run and end, their logs, deletion in the foreground and evictions are the
cluster's. Its own batch/v1 would drop the fields: the front keeps Jobs as objects of a group of the lab's.
"""

from __future__ import annotations

import json
import re
import secrets
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate

from kubernetes_lab.api import Answered, Api, true_conditions

GROUP = "lab.example"
VERSION = "1.31"
"""Of Kubernetes, whose fields a Job may have."""
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"jobs.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "jobs", "kind": "Job"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
_TRACKED = "batch.kubernetes.io/job-tracking"
_INDEX = "batch.kubernetes.io/job-completion-index"
_PERIOD = 0.3  # seconds
_EVICTION = re.compile(r"(/api/v1/namespaces/[^/]+/pods/[^/]+)/eviction$")


@contextmanager
def front(api: Api, port: int, certificate: Path, key: Path) -> Iterator[None]:
    """The cluster's API with Indexed Jobs, at a port of the loopback, for whoever has its token."""
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate, key)

    class Handler(BaseHTTPRequestHandler):
        def relay(self) -> None:
            body = self._body()
            if self.headers.get("Authorization") != f"Bearer {api.token}":
                return self._answer(401, b"{}")
            if self.command == "POST" and self.path.startswith("/apis/batch/") and (wrong := mistake(json.loads(body))):
                return self._answer(400, json.dumps(wrong).encode())
            if self.command == "POST" and (match := _EVICTION.search(self.path)):
                _mark_disrupted(api, match.group(1))
            path = self.path.replace("/apis/batch/v1/", f"/apis/{GROUP}/v1/")
            headers = {name: self.headers[name] for name in ("Content-Type",) if name in self.headers}
            inside = body.replace(b'"batch/v1"', f'"{GROUP}/v1"'.encode()) if body else None
            with api.send(self.command, path, inside, headers) as answer:
                if "/log" in path and answer.status == 200:
                    return self._stream(answer)
                text = answer.read().replace(f'"{GROUP}/v1"'.encode(), b'"batch/v1"')
            return self._answer(answer.status, text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = relay

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            text = b""
            while size := int(self.rfile.readline(), 16):
                text += self.rfile.read(size)
                self.rfile.readline()
            return text

        def _answer(self, status: int, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, answer: Any) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            while text := answer.read1(65536):
                self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # kubectl asks for everything at once

    with Server(("127.0.0.1", port), Handler) as server:
        server.socket = secure.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def mistake(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a server of `VERSION` says to a Job with a field that it does not know; None for a good one."""
    try:
        kubernetes_validate.validate(job, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        told = {"status": "Failure", "reason": "BadRequest", "message": f"strict decoding error: {error.message}"}
        return {"kind": "Status", "apiVersion": "v1", "code": 400, **told}
    return None


def _mark_disrupted(api: Api, pod: str) -> None:
    """As clusters do from 1.26 on."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    body = {"status": {"conditions": [condition]}}
    api("PATCH", f"{pod}/status", body, "application/strategic-merge-patch+json")


@contextmanager
def controller(api: Api) -> Iterator[None]:
    """Does for the Jobs of all namespaces what the cluster's own controller does not know of."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(_PERIOD):
            for job in api("GET", f"/apis/{GROUP}/v1/jobs")["items"]:
                try:
                    _Job(api, job).sync()
                except Answered as refused:
                    if refused.code not in (404, 409):  # it changed meanwhile: the next look sees it
                        raise

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Job:
    """One Job as it is now."""

    def __init__(self, api: Api, job: Mapping[str, Any]) -> None:
        self._api, self._job = api, job
        self._metadata, self._spec = job["metadata"], job["spec"]
        self._status: dict[str, Any] = {"startTime": _now(), "failed": 0, "conditions": [], **job.get("status", {})}
        self._pods_path = f"/api/v1/namespaces/{self._metadata['namespace']}/pods"
        found = api("GET", f"{self._pods_path}?labelSelector=job-name%3D{self._metadata['name']}")["items"]
        self._pods = [pod for pod in found if pod["metadata"]["ownerReferences"][0]["uid"] == self._metadata["uid"]]

    def sync(self) -> None:
        """Count the pods that have ended, decide, and make those that are wanted."""
        tracked = [pod for pod in self._pods if pod["metadata"].get("finalizers")]
        ended = [pod for pod in tracked if _ended(pod)]
        running = [pod for pod in tracked if not _ended(pod)]
        over = {"Complete", "Failed"} & set(true_conditions(self._job)) or "deletionTimestamp" in self._metadata
        if not over:
            self._decide(ended, running)
        for pod in ended:
            self._api.merge(self._path(pod), {"metadata": {"finalizers": None}})

    def _decide(self, ended: list[dict[str, Any]], running: list[dict[str, Any]]) -> None:
        done = {_index(pod) for pod in self._pods if pod["status"].get("phase") == "Succeeded"}
        done |= {int(one) for one in self._status.get("completedIndexes", "").split(",") if one}
        end = self._outcome(ended, done)
        if end is not None:
            for pod in running:
                self._api("DELETE", self._path(pod))
            self._status["conditions"] = [{"status": "True", "lastTransitionTime": _now(), **end}]
        else:
            for index in set(range(self._spec["completions"])) - done - {_index(pod) for pod in running}:
                self._api("POST", self._pods_path, self._pod(index))
        ready = sum("Ready" in true_conditions(pod) for pod in running)
        counts = {"active": len(running), "ready": ready, "succeeded": len(done)}
        self._status |= {**counts, "completedIndexes": ",".join(map(str, sorted(done)))}
        own = f"/apis/{GROUP}/v1/namespaces/{self._metadata['namespace']}/jobs/{self._metadata['name']}"
        if self._status != self._job.get("status"):
            self._api.merge(f"{own}/status", {"status": self._status})

    def _outcome(self, ended: list[dict[str, Any]], done: set[int]) -> dict[str, str] | None:
        """The condition with which the Job ends now; None while it goes on."""
        for pod in ended:
            if pod["status"].get("phase") == "Succeeded":
                continue
            action, said = self._by_policy(pod)
            if action == "FailJob":
                return {"type": "Failed", "reason": "PodFailurePolicy", "message": said}
            self._status["failed"] += action == "Count"
        if self._status["failed"] > self._spec["backoffLimit"]:
            said = "Job has reached the specified backoff limit"
            return {"type": "Failed", "reason": "BackoffLimitExceeded", "message": said}
        enough = [{int(one["succeededIndexes"])} for one in self._spec.get("successPolicy", {}).get("rules", ())]
        if any(one <= done for one in (*enough, set(range(self._spec["completions"])))):
            return {"type": "Complete", "reason": "CompletionsReached", "message": "Reached expected number of pods"}
        return None

    def _by_policy(self, pod: Mapping[str, Any]) -> tuple[str, str]:
        """What the first rule that fits says of a failed pod."""
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        codes = {
            one["name"]: one["state"]["terminated"]["exitCode"]
            for one in pod["status"].get("containerStatuses", ())
            if "terminated" in one["state"]
        }
        for number, rule in enumerate(self._spec.get("podFailurePolicy", {}).get("rules", ())):
            if {one["type"] for one in rule.get("onPodConditions", ())} & set(true_conditions(pod)):
                return rule["action"], ""
            wanted = rule.get("onExitCodes")
            code = codes.get(wanted["containerName"]) if wanted else None
            if code and (code in wanted["values"]) == (wanted["operator"] == "In"):
                said = f"Container {wanted['containerName']} for pod {name} failed with exit code {code} matching"
                return rule["action"], f"{said} {rule['action']} rule at index {number}"
        return "Count", ""

    def _pod(self, index: int) -> dict[str, Any]:
        name, template = self._metadata["name"], self._spec["template"]
        labels = {"job-name": name, "batch.kubernetes.io/job-name": name, _INDEX: str(index)}
        owner = {"apiVersion": f"{GROUP}/v1", "kind": "Job", "name": name, "uid": self._metadata["uid"]}
        metadata = {
            **template["metadata"],
            "name": f"{name}-{index}-{secrets.token_hex(3)[:5]}",
            "labels": {**template["metadata"].get("labels", {}), **labels},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "finalizers": [_TRACKED],
        }
        told = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
        containers = [{**one, "env": [*one.get("env", ()), told]} for one in template["spec"]["containers"]]
        spec = {**template["spec"], "containers": containers, "hostname": f"{name}-{index}"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _path(self, pod: Mapping[str, Any]) -> str:
        return f"{self._pods_path}/{pod['metadata']['name']}"


def _ended(pod: Mapping[str, Any]) -> bool:
    """Whether it will print nothing more: a deleted one that never ran has no phase that says so."""
    return (
        pod["status"].get("phase") in ("Succeeded", "Failed") or pod["metadata"].get("deletionGracePeriodSeconds") == 0
    )


def _index(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["labels"][_INDEX])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
