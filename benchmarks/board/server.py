"""The board as its command starts it: time to an answer, the table, memory, open files, and what it takes idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

IDLE = 10
"""Seconds over which a board is watched that has nothing to do."""


@dataclass
class Served:
    """A board that runs; `address` is what it printed, `began` when its command was given."""

    address: str
    process: psutil.Process
    began: float
    opener: urllib.request.OpenerDirector = field(init=False)

    def __post_init__(self) -> None:
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.opener.open(self.address).read()

    @property
    def base(self) -> str:
        """The address of its page, for who has the cookie."""
        return self.address.partition("/?")[0]

    def ask(self, path: str) -> bytes:
        """What it answers."""
        return self.opener.open(self.base + path).read()

    def rows(self) -> list[dict[str, Any]]:
        """The table of runs."""
        return json.loads(self.ask("/api/runs"))["runs"]

    def run(self) -> dict[str, Any]:
        """The one run that it has, once that is read."""
        while True:
            rows = self.rows()
            if len(rows) == 1 and rows[0]["read"] == 1:
                return rows[0]
            time.sleep(0.02)

    def memory(self) -> dict[str, float]:
        """Megabytes now and at most, and open files."""
        resident = self.process.memory_info().rss / 1e6
        return {"resident_mb": resident, "peak_mb": peak(self.process), "open_files": self.process.num_fds()}

    def idle_percent(self, seconds: float = IDLE) -> float:
        """What it takes of one core from now on."""
        before = spent(self.process)
        time.sleep(seconds)
        return (spent(self.process) - before) / seconds * 100


def spent(process: psutil.Process) -> float:
    """Seconds of a processor that it has taken."""
    times = process.cpu_times()
    return times.user + times.system


def peak(process: psutil.Process) -> float:
    """Megabytes that it has had at most."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    most = next(line for line in status if line.startswith("VmHWM"))
    return int(most.split()[1]) * 1024 / 1e6


@contextmanager
def serving(folder: Path, home: Path) -> Iterator[Served]:
    """A board over a folder; what it keeps lies in `home`: an empty one makes a cold start."""
    environment = os.environ | {"XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache")}
    command = [sys.executable, "-m", "drivetrain", "board", str(folder), "--port", "0"]
    began = time.perf_counter()
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        yield Served(server.stdout.readline().strip(), psutil.Process(server.pid), began)
    finally:
        server.terminate()
        server.wait()


def figures(folder: Path, home: Path, runs: int = 1) -> dict[str, float]:
    """From the command to answers, twice: with nothing kept, and with what the first one kept."""
    told = {}
    for state in ("cold", "warm"):
        for name, value in _once(folder, home, runs).items():
            told[f"{state}_{name}"] = value
    return told


def _once(folder: Path, home: Path, runs: int) -> dict[str, float]:
    with serving(folder, home) as board:
        board.ask("/")
        told = {"command_to_answer_s": time.perf_counter() - board.began}
        while True:
            asking = time.perf_counter()
            rows = board.rows()
            took = time.perf_counter() - asking
            if len(rows) == runs and all(row["read"] == 1 for row in rows):
                break
            time.sleep(0.05)
        told |= {"all_read_s": time.perf_counter() - board.began, "first_list_ms": 1e3 * took}
        asking = time.perf_counter()
        board.rows()
        told["list_ms"] = 1e3 * (time.perf_counter() - asking)
        told["idle_core_percent"] = board.idle_percent()
        return told | board.memory()
