"""A run directory that stalls while a run trains: calls below it block, in workers and supervisor, as long as a file
elsewhere is there. Nothing of this ships.

The files are `-stalls` (the gate), `-steps` (how far each rank is, as which process) and `-most` (bytes that may wait).
"""

from __future__ import annotations

import io
import os
import random
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from drills.runs import PRELOAD
from drivetrain.launch import supervisor
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import prepare_job
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.load import load

WORKER = "drills.stalled:main"
CALLS = (
    *("open", "write", "pwrite", "fsync", "ftruncate", "rename", "replace", "link", "unlink", "mkdir", "rmdir"),
    *("stat", "lstat", "listdir", "scandir"),
)
PACE = 0.03
"""Seconds that each step takes longer while the directory stalls: else a run would be over before the stall is."""
PAUSE, LONGEST = 1.5, 0.8
"""Seconds between two random stalls, and of one, at most."""
_COUNTS = struct.Struct("<QQ")  # step and process
_real_stat, _real_pwrite, _real_link = os.stat, os.pwrite, os.readlink


def beside(run: Path, what: str) -> Path:
    """A file that a drill and its workers share, out of the run directory, and of the disk that this one is on."""
    return Path(tempfile.gettempdir()) / f"drill{str(run).replace('/', '-')}-{what}"


def closed(gate: Path) -> bool:
    """Whether the directory stalls now."""
    try:
        _real_stat(gate)
    except OSError:
        return False
    return True


@contextmanager
def stalling(run: Path) -> Iterator[None]:
    """While entered, this process's calls below a run directory block whenever the gate is there."""
    gate = beside(run, "stalls")
    with ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, _blocking(getattr(os, name), run, gate)))
        stack.enter_context(mock.patch.object(io, "open", _blocking(io.open, run, gate)))
        yield


def _blocking(real: Callable[..., Any], run: Path, gate: Path) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        if closed(gate) and any(_below(target, run) for target in (*arguments[:2], *options.values())):
            while closed(gate):
                time.sleep(0.01)
        return real(*arguments, **options)

    return called


def _below(target: Any, run: Path) -> bool:
    """Whether a path, or what a descriptor has open, is in the run directory."""
    path = target
    if isinstance(target, int):
        with suppress(OSError):
            path = _real_link(f"/proc/self/fd/{target}")
    elif isinstance(target, os.PathLike):
        path = os.fspath(target)
    return isinstance(path, str) and (path == str(run) or path.startswith(f"{run}/"))


class CountingHeartbeat(Heartbeat):
    """Tells beside the run directory how far its rank is."""

    gate: Path
    counts: int
    mine: int

    def enter(self, phase: str) -> None:
        super().enter(phase)
        if phase == "data":
            _real_pwrite(self.counts, _COUNTS.pack(self.step, os.getpid()), self.mine * _COUNTS.size)
            if closed(self.gate):
                time.sleep(PACE)


def main(job: dict[str, Any], place: dict[str, Any], descriptors: list[int]) -> int:
    """A training process whose run directory may stall."""
    from drivetrain.run import resume
    from drivetrain.worker import main as work

    run = Path(job["folder"])
    CountingHeartbeat.gate, CountingHeartbeat.mine = beside(run, "stalls"), place["rank"]
    CountingHeartbeat.counts = os.open(beside(run, "steps"), os.O_RDWR | os.O_CREAT, 0o600)
    most = beside(run, "most")
    if most.is_file():
        resume.Patience = partial(resume.Patience, most=int(most.read_text()))  # type: ignore[misc]
    with stalling(run):
        return work(job, place, descriptors, CountingHeartbeat)


def workers(run: Path) -> list[tuple[int, int]]:
    """The step and the process of each rank, as told beside the run directory."""
    try:
        content = beside(run, "steps").read_bytes()
    except OSError:
        return []
    return list(_COUNTS.iter_unpack(content[: len(content) // _COUNTS.size * _COUNTS.size]))


def reached(run: Path) -> int:
    """The step that rank 0 is at; 0 before the first."""
    return next((step for step, _ in workers(run)), 0)


def forget(run: Path) -> None:
    """Nothing of another run that had the same name."""
    for what in ("stalls", "steps"):
        beside(run, what).unlink(missing_ok=True)


def train(recipe: dict, run: Path, *overrides: str) -> Outcome:
    """Train to the end, in a directory that may stall; again where a run was stopped."""
    while True:
        job = prepare_job(load(recipe, overrides), run=run, overrides=overrides, options=StartOptions())
        with stalling(run):
            outcome = supervisor.supervise(job, worker=WORKER, preload=PRELOAD)
        if outcome.code is not Exit.STOPPED:
            return outcome


@dataclass
class Seen:
    """The steps that rank 0 was at when a stall began and ended."""

    began: int = 0
    ended: int = 0


@contextmanager
def stall(run: Path, *, step: int, seconds: float, within: Callable[[], None] = lambda: None) -> Iterator[Seen]:
    """While entered, wait for a step, and let the directory stall for so many seconds; `within` is called in it."""
    seen, over = Seen(), threading.Event()
    forget(run)

    def work() -> None:
        while reached(run) < step and not over.wait(0.005):
            pass
        beside(run, "stalls").touch()
        seen.began = reached(run)
        within()
        over.wait(seconds)
        seen.ended = reached(run)
        forget(run)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@contextmanager
def random_stalls(run: Path, generator: random.Random) -> Iterator[None]:
    """While entered, the directory stalls at random moments, for up to `LONGEST` seconds."""
    over = threading.Event()
    forget(run)

    def work() -> None:
        while not over.wait(generator.uniform(0, PAUSE)):
            beside(run, "stalls").touch()
            over.wait(generator.uniform(0, LONGEST))
            beside(run, "stalls").unlink(missing_ok=True)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        forget(run)
