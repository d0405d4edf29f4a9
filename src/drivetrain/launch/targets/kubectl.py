"""Calls to a Kubernetes API server through kubectl, which knows how its user is let in.

Only `--raw` calls are made: they are plain HTTP, the same in every version.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drivetrain.launch.targets.remote import Refused, away
from drivetrain.spec.exits import Exit, Failure

_VERBS: Mapping[str, Sequence[str]] = {
    "GET": ("get",),
    "POST": ("create", "-f", "-"),
    "PUT": ("replace", "-f", "-"),
    "DELETE": ("delete",),
}
_SAID = re.compile(r"Error from server(?: \((\w+)\))?: ?(.*)", re.DOTALL)
_LATER = frozenset({"Conflict", "ServerTimeout", "Timeout", "TooManyRequests", "InternalError", "ServiceUnavailable"})
_AWAY = re.compile(r"[Uu]nable to connect|refused|timed? ?out|no such host|EOF|deadline exceeded")
_MARGIN = 5.0  # seconds that kubectl has beyond the request's own time limit


class Kubectl:
    """The cluster of one context of the user's kubeconfig; None: the current one."""

    def __init__(self, context: str | None, timeout: float) -> None:
        self._context = context
        self._timeout = timeout

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one request. Raises Failure: 66 without kubectl or credentials, 69 where none comes in time,
        Refused (78)."""
        command = self._command(method, path, self._timeout)
        given = json.dumps(body) if body is not None else ""
        # kubectl's own limit comes first, with words of its own; this one is for a kubectl that hangs.
        limit = self._timeout + _MARGIN
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=limit, check=False)
        except FileNotFoundError as error:
            raise _missing() from error
        except subprocess.TimeoutExpired as error:
            raise away(f"kubectl: no answer in {limit:g} s") from error
        if done.returncode:
            raise failure(done.stderr)
        return json.loads(done.stdout or "{}")

    def lines(self, path: str) -> Iterator[str]:
        """The lines of a text that may still grow."""
        try:
            process = subprocess.Popen(
                self._command("GET", path, 0),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except FileNotFoundError as error:
            raise _missing() from error
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                for line in process.stdout:
                    yield line.rstrip("\n")
                if process.wait():
                    raise failure(process.stderr.read())
            finally:
                process.terminate()

    def _command(self, method: str, path: str, timeout: float) -> list[str]:
        verb, *rest = _VERBS[method]
        context = [f"--context={self._context}"] if self._context else []
        return ["kubectl", *context, f"--request-timeout={timeout:g}", verb, "--raw", path, *rest]


def failure(said: str) -> Failure:
    """What kubectl's complaint means."""
    text = " ".join(said.split()) or "it said nothing"
    match = _SAID.search(text)
    # What is no answer of the server is kubectl's own: no way there, or, as "not logged in", something to be mended
    # before it is asked again.
    if match is None and "ogged in" not in text and "credential" not in text and _AWAY.search(text):
        return away(f"kubectl: {text}")
    if match is None:
        return Failure(Exit.INPUT_MISSING, f"kubectl: {text}", "see `kubectl cluster-info`; the target names a context")
    word, message = match.group(1) or "", match.group(2)
    if word in _LATER:
        return away(f"Kubernetes: {message}")
    return Refused(f"Kubernetes: {word}: {message}", word)


def _missing() -> Failure:
    return Failure(Exit.INPUT_MISSING, "kubectl is not installed here", "install it; it needs no rights of its own")
