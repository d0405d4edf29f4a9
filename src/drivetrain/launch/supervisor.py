"""The process that a user starts: without torch, it starts workers, forwards signals, and says why a run ended."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from drivetrain.launch.forkserver import ForkServer
from drivetrain.launch.job import Job
from drivetrain.runtime.place import Place
from drivetrain.runtime.signals import stopping
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import write_json

WORKER = "drivetrain.worker:main"
PRELOAD = ("torch", "drivetrain.worker")
GRACE = 1.0
"""Seconds that the other workers have to end by themselves after one has failed."""
_TICK = 0.1
_ENDS = (Exit.DONE, Exit.STOPPED)


def supervise(
    job: Job, *, worker: str = WORKER, preload: tuple[str, ...] = PRELOAD, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Run a job's processes on this machine to their end; the outcome is also in `exit.json`.

    Raises Failure(73) where the run directory cannot be made. `say` is told what the user should know meanwhile.
    """
    run = Path(job.folder)
    logs = prepare(run)
    for old in logs.glob("outcome-*.json"):
        old.unlink()
    server = ForkServer(preload)
    try:
        outcome = _Watch(job, server, say).run(worker)
    finally:
        server.close()
    return record(run, outcome)


def prepare(run: Path) -> Path:
    """Make the run directory and its `logs`, 0700; Failure(73) where that is refused."""
    logs = run / "logs"
    try:
        for folder in (run, logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = logs / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{run} cannot be used: {error}", "choose another place by --run") from error
    return logs


def record(run: Path, outcome: Outcome) -> Outcome:
    """Keep a run's outcome in `exit.json`, with the last committed step; returns it completed."""
    committed = [
        int(match.group(1)) for path in (run / "checkpoints").glob("step-*") if (match := _COMMIT.fullmatch(path.name))
    ]
    where = outcome.where | {"last_committed_step": max(committed, default=None)}
    complete = Outcome(code=outcome.code, cause=outcome.cause, hint=outcome.hint, where=where)
    try:
        write_json(run / "exit.json", complete.to_json())
    except OSError as error:  # the disk is full or gone: the line on stderr still says all
        print(f"drivetrain: exit.json cannot be written: {error}", file=sys.stderr)
    return complete


_COMMIT = re.compile(r"step-(\d{8,})")


@dataclass
class _Watch:
    """Watches the workers of one start."""

    job: Job
    server: ForkServer
    say: Callable[[str], None]
    pids: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # rank: status, in the order of their ends
    asked: int = 0
    forwarded: int = 0
    last: int = signal.SIGTERM  # the signal that asked
    deadline: float | None = None

    def run(self, worker: str) -> Outcome:
        with _signals(self._ask), _listener(self.job.processes) as listen:
            for rank in range(self.job.processes):
                place = Place(
                    rank=rank,
                    world=self.job.processes,
                    local_rank=rank,
                    local_world=self.job.processes,
                    port=listen.getsockname()[1] if listen else 0,
                    launcher="local",
                )
                self.server.start(worker, rank, [self.job.to_json(), asdict(place)], listen if rank == 0 else None)
            while len(self.ended) < self.job.processes:
                if not self._turn():
                    return Outcome(
                        code=Exit.INTERNAL, cause="the forkserver died", hint="look above for its traceback", where={}
                    )
        return self._outcome()

    def _ask(self, number: int) -> None:
        self.asked += 1
        self.last = number

    def _turn(self) -> bool:
        """One look at news, signals and the clock; False where the server is gone."""
        if select.select([self.server], [], [], _TICK)[0]:
            news = self.server.news()
            if news is None:
                return False
            if "pid" in news:
                self.pids[news["rank"]] = news["pid"]
            else:
                self._end(news["rank"], news["status"])
        if self.asked > self.forwarded and len(self.pids) == self.job.processes:
            self._forward()
        if self.deadline is not None and time.monotonic() > self.deadline:
            self._kill()
        return True

    def _end(self, rank: int, status: int) -> None:
        self.ended[rank] = status
        if self.deadline is None and self._rank_outcome(rank).code not in _ENDS:
            self.deadline = time.monotonic() + GRACE

    def _forward(self) -> None:
        self.forwarded = self.asked
        if self.forwarded == 1:
            self.say("stopping: the step under way is finished and committed")
        elif self.forwarded == 2:
            self.say("the commit is under way; once more ends it at once, and the commit before it stays")
        else:
            self._kill()
            return
        self._signal(self.last)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for rank, pid in self.pids.items():
            if rank not in self.ended:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)

    def _outcome(self) -> Outcome:
        """The first cause: the first end that is neither good nor the mere loss of a peer."""
        outcomes = [self._rank_outcome(rank) for rank in self.ended]
        if self.forwarded >= 3:
            killed = "ended at once by a third signal"
            return Outcome(code=Exit.INTERNAL, cause=killed, hint="start again: the last commit is whole", where={})
        for unimportant in ((*_ENDS, Exit.PEER_UNAVAILABLE), _ENDS):
            for outcome in outcomes:
                if outcome.code not in unimportant:
                    return outcome
        return max(outcomes, key=lambda outcome: outcome.code)

    def _rank_outcome(self, rank: int) -> Outcome:
        """What a worker left behind, or what its end says where it left nothing."""
        status = self.ended[rank]
        try:
            told = json.loads((Path(self.job.folder) / "logs" / f"outcome-{rank}.json").read_text())
            if status == told["code"]:
                return Outcome.from_json(told)
        except (OSError, ValueError):
            pass
        where = {"rank": rank}
        if status < 0:
            cause = f"rank {rank} was ended by {signal.Signals(-status).name}"
            hint = "SIGKILL is often the kernel short of memory: look at its log; otherwise start again"
            return Outcome(code=Exit.INTERNAL, cause=cause, hint=hint, where=where)
        cause = f"rank {rank} exited with {status} without saying why"
        return Outcome(code=Exit.INTERNAL, cause=cause, hint="look above for what it printed", where=where)


class _signals:  # noqa: N801 - used as a statement
    """While entered, signals that ask for a stop call `ask`; outside the main thread nothing is installed."""

    def __init__(self, ask: Callable[[int], None]) -> None:
        self._ask = ask
        self._previous: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in stopping():
                self._previous[number] = signal.signal(number, lambda number, _: self._ask(number))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


class _listener:  # noqa: N801 - used as a statement
    """A socket bound to the loopback for the rendezvous of several processes; None for one."""

    def __init__(self, processes: int) -> None:
        self._socket = socket.socket() if processes > 1 else None

    def __enter__(self) -> socket.socket | None:
        if self._socket:
            self._socket.bind(("127.0.0.1", 0))
            self._socket.listen()
        return self._socket

    def __exit__(self, *_: object) -> None:
        if self._socket:
            self._socket.close()
