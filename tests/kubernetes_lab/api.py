"""Calls to an API server on this machine."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from typing import Any


class Answered(Exception):
    """The server refused; `code` is its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


@dataclass(frozen=True)
class Api:
    """The server at a port of the loopback, and the token of one who may do anything there."""

    port: int
    token: str

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HTTPResponse:
        """Its answer, which is to be read to its end."""
        trusted = ssl._create_unverified_context()  # it makes its own certificate, and is this machine's
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=None, context=trusted)
        connection.request(method, path, body, {**headers, "Authorization": f"Bearer {self.token}"})
        return connection.getresponse()

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The object that it answers with. Raises Answered."""
        text = None if body is None else json.dumps(body).encode()
        with self.send(method, path, text, {"Content-Type": kind}) as answer:
            said = answer.read()
        if answer.status >= 400:
            raise Answered(answer.status, said.decode())
        return json.loads(said)

    def merge(self, path: str, changes: Mapping[str, Any]) -> Any:
        """Change some fields of an object."""
        return self("PATCH", path, changes, "application/merge-patch+json")

    def ready(self) -> bool:
        """Whether it is up."""
        try:
            with self.send("GET", "/readyz", None, {}) as answer:
                return answer.read() == b"ok"
        except OSError:
            return False


def true_conditions(found: Mapping[str, Any]) -> Iterable[str]:
    """The types of the conditions of an object that hold."""
    return {one["type"] for one in (found.get("status", {}).get("conditions") or ()) if one["status"] == "True"}
