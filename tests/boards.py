"""A board on a real socket, for tests: its address, its keys, and a way to ask it."""

from __future__ import annotations

import http.client
import json
import re
import struct
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.board.app import application
from drivetrain.board.board import Board
from drivetrain.board.guard import Guard, hosts_of
from drivetrain.board.keys import Keys
from drivetrain.board.notes import Notes
from drivetrain.board.runs import Runs
from drivetrain.board.schema import board_schema
from drivetrain.board.serve import listen, server_of
from drivetrain.ledger.ledger import LedgerFile, body_of, chained

KEYS = Keys("t" * 40, "s" * 40, "k" * 40)
RECIPE = {"name": "tiny", "optimizer": {"kind": "adamw", "lr": 1e-3}, "parallel": {"shard": 2, "replicate": "auto"}}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Asked:
    """A board that runs."""

    port: int
    board: Board

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def own(self) -> dict[str, str]:
        """What a page of the board sends."""
        cookie = f"drivetrain-board-{self.port}={KEYS.session}"
        return {"cookie": cookie, "origin": self.url, "content-type": "application/json", "x-board-key": KEYS.key}

    def ask(self, method="GET", path="/", headers=None, body=None, host=...) -> Answer:
        """One request, with exactly these headers, and a Host unless it is None."""
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        asking.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if host is not None:
            asking.putheader("host", f"127.0.0.1:{self.port}" if host is ... else host)
        for name, value in (headers or {}).items():
            asking.putheader(name, value)
        if body is not None:
            asking.putheader("content-length", str(len(body)))
        asking.endheaders(body)
        answer = asking.getresponse()
        told = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        asking.close()
        if told.headers.get("content-type") == "application/json":
            require_described(method, path, told)
        return told

    def get(self, path: str) -> Any:
        """The JSON of an address, as a page asks for it."""
        answer = self.ask(path=path, headers=self.own)
        assert answer.status == 200, answer
        return answer.json

    def send(self, method: str, path: str, value: Any) -> Answer:
        """What a page of the board sends to change something."""
        return self.ask(method, path, self.own, json.dumps(value).encode())

    def run(self, name: str) -> dict[str, Any]:
        """The line of a run, once its ledger is read."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for row in self.get("/api/runs")["runs"]:
                if row["name"] == name and row["read"] == 1:
                    return row
            time.sleep(0.02)
        raise AssertionError(f"no run {name}")


@cache
def described(method: str, path: str, status: str):
    """What the schema lets an address answer, and nothing else; None where it has none."""
    from jsonschema import Draft202012Validator

    told = closed(board_schema())
    for template, methods in told["paths"].items():
        if method.lower() in methods and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
            answers = methods[method.lower()]["responses"].get(status, {"content": {}})["content"]
            if "application/json" in answers:
                schema = answers["application/json"]["schema"] | {"components": told["components"]}
                return Draft202012Validator(schema)
    return None


def closed(schema: Any) -> Any:
    """A schema that no other name than its own fulfils."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        made["additionalProperties"] = False
    return made


def require_described(method: str, path: str, told: Answer) -> None:
    """Each answer of each test is what `docs/board-schema.json` says."""
    status = "default" if told.status >= 400 else str(told.status)
    if status == "default":
        assert told.json.keys() == {"error", "hint"}
        return
    allowed = described(method, path.partition("?")[0], status)
    assert allowed is not None, f"{method} {path} {status} is in no schema"
    allowed.validate(told.json)


@contextmanager
def serving(
    *folders: Path, cache: Path | None = None, state: Path | None = None, read_only: bool = False, port: int = 0
):
    """A board over these folders until the block ends."""
    board = Board(Runs(folders, cache), Notes(state or Path(tempfile.mkdtemp())), read_only)
    listening = listen("127.0.0.1", port)
    port = listening.getsockname()[1]
    guarded = Guard(application(board), KEYS, hosts_of("127.0.0.1", port), read_only)
    server = server_of(guarded, board)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield Asked(port, board)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def decoded(body):
    """Curves as the page reads them, by name."""
    (length,) = struct.unpack_from("<I", body)
    head, at, found = json.loads(body[4 : 4 + length]), 4 + length, {}
    for told in head["curves"]:
        n, columns = told["length"], []
        for kind, size in (("<f8", 8), ("<f4", 4), ("<f4", 4), ("<f4", 4), ("u1", 1)):
            columns.append(np.frombuffer(body, kind, n, at))
            at += size * n + -size * n % 8
        found[told["name"]] = columns
    assert at == len(body)
    return head, found


def made_run(folder: Path, told, recipe=RECIPE) -> Path:
    """A run directory with this recipe and these records."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolved.json").write_text(json.dumps({"recipe": recipe, "origins": {"name": "r.yaml:1"}}))
    append(folder, told)
    return folder


def append(folder: Path, told) -> None:
    """More records at the end of a run's ledger."""
    file = LedgerFile.open(folder / "ledger.jsonl")
    # All at once: some tests write tens of thousands.
    file.write(*chained(file.tail, map(body_of, told)))
    file.close()
