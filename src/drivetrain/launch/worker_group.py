"""One start of a run's processes on this machine: they are watched to their end, and it is said how they ended."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.launch.forkserver import ForkServer
from drivetrain.launch.hangs import HangJudge, write_stacks
from drivetrain.launch.job import Job
from drivetrain.launch.machine import core_pattern, oom_kills
from drivetrain.launch.rundir import ANSWER
from drivetrain.runtime.heartbeat import HeartbeatMemory, HeartbeatSlot
from drivetrain.runtime.place import Node, Place
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.files import within

GRACE = 1.0
"""Seconds that the other workers have to end by themselves after one has failed."""
HANDOVER = 30.0
"""Seconds that survivors may take to leave their state in memory."""
LEAVING = 60.0
"""Seconds that a worker has to end once it has said how, or was killed: the kernel may keep it, for a disk's sake."""
LEFT = 5.0
"""The same where one of them has told of a run directory that stalls: nothing is started after it."""
_TICK = 0.1
_LOOK = 1.0  # seconds between two looks at the signs of life
_ENDS = (Exit.DONE, Exit.STOPPED)


@dataclass
class WorkerGroup:
    """Watches the workers of one start."""

    job: Job
    node: Node
    server: ForkServer
    signs: HeartbeatMemory
    stops: StopRequests
    say: Callable[[str], None]
    pids: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # rank: status, in the order of their ends
    hung: dict[int, Outcome] = field(default_factory=dict)
    orphaned: int = 0  # the status with which the forkserver, and with it every worker, has ended
    sacrificed: set[int] = field(default_factory=set)  # ended because another had failed
    leaving: dict[int, tuple[float, int]] = field(default_factory=dict)  # rank: since when its end is known, and which
    patience: float = LEAVING
    forwarded: int = 0  # of the stop requests: another start forwards all of them again
    deadline: float | None = None
    looked: float = 0.0
    ooms: int = field(default_factory=oom_kills)
    told: dict[str, Any] = field(default_factory=dict)  # step and phase under way, and time, at the first bad end

    def __post_init__(self) -> None:
        self.hangs = HangJudge(self.job, alone=self.node.count == 1, say=self.say)

    @property
    def killed(self) -> bool:
        """Whether a worker, or all with their server, were ended by a signal that this supervisor did not send because
        another had failed."""
        if self.orphaned < 0:
            return True
        return any(status < 0 and rank not in self.sacrificed for rank, status in self.ended.items())

    def run(self, worker: str) -> Outcome:
        """Start the workers and watch them to their end."""
        self.server.revive()
        try:
            with _listener(self.node, self.job.processes * self.node.count) as listen:
                self._start(worker, listen)
                while len(self.ended) < self.job.processes:
                    self._turn()
        except ConnectionError:
            self.orphaned = self.server.status()
            return _serverless(self.orphaned)
        except OSError as error:
            cause = f"rank 0 cannot listen at {self.node.host}:{self.node.port}: {error}"
            hint = "see that the address is this machine's and the port is free"
            return Outcome(code=Exit.PEER_UNAVAILABLE, cause=cause, hint=hint, where={})
        return self._outcome()

    def _rank(self, local: int) -> int:
        """The number among all nodes' processes of one of this node's."""
        return self.node.rank * self.job.processes + local

    def _start(self, worker: str, listen: socket.socket | None) -> None:
        port = self.node.port
        if listen is not None:
            port = listen.getsockname()[1]
        for rank in range(self.job.processes):
            place = Place(
                rank=self._rank(rank),
                world=self.job.processes * self.node.count,
                local_rank=rank,
                local_world=self.job.processes,
                host=self.node.host,
                port=port,
                launcher="local",
            )
            passed = [self.signs.descriptor]
            # Rank 0 gets the socket itself, already bound: a port that is only told could be another's by then.
            if listen is not None and rank == 0:
                passed.append(listen.fileno())
            self.server.start(worker, rank, [self.job.to_json(), asdict(place)], passed)

    def _turn(self) -> None:
        """One look at news, signals and the clock. Raises ConnectionError where the server is gone."""
        if select.select([self.server], [], [], _TICK)[0]:
            news = self.server.news()
            if "status" not in news:
                self.pids[news["rank"]] = news["pid"]
            elif self.pids.get(news["rank"]) == news["pid"]:  # else it is of a start before, and was let go
                self._end(news["rank"], news["status"])
        # Not before all have started: a request is blocked over the fork, but one that is not yet forked has no number.
        if self.stops.count > self.forwarded and len(self.pids) == self.job.processes:
            self._forward()
        now = time.monotonic()
        self._let_go(now)
        if now - self.looked >= _LOOK:
            self.looked = now
            self._look(now)
        if self.deadline is not None and now > self.deadline and not self._handing_over(now):
            self._kill()

    def _let_go(self, now: float) -> None:
        """Take those for ended that have said how they end, and cannot."""
        for rank in self.pids.keys() - self.leaving.keys():
            if word := self.signs.said(rank):
                told = json.loads(word)
                self.leaving[rank] = now, told["code"]
                if "stalled" in told["where"]:
                    self.patience = LEFT
        for rank, (since, status) in self.leaving.items():
            if rank not in self.ended and now - since > self.patience:
                with suppress(ProcessLookupError):
                    os.kill(self.pids[rank], signal.SIGKILL)
                self._end(rank, status)

    def _end(self, rank: int, status: int) -> None:
        if rank in self.ended:
            return
        self.ended[rank] = status
        # Only the first bad end sets the deadline: the ends that follow from it must not put it off.
        if self.deadline is None and self._rank_outcome(rank).code not in _ENDS:
            signs = self.signs.look()
            furthest = max(signs, key=lambda sign: sign.step)
            self.told = {"step": furthest.step, "phase": furthest.phase, "noticed": time.time()}
            # A survivor hears of it when it next talks to its peers, at the latest at the end of its step.
            self.deadline = time.monotonic() + GRACE + min(HANDOVER, 2 * max(sign.seconds for sign in signs))

    def _handing_over(self, now: float) -> bool:
        """Whether a survivor is at it and still has time."""
        signs = self.signs.look()
        busy = any(signs[rank].phase == "handover" for rank in self.pids if rank not in self.ended)
        return busy and self.deadline is not None and now < self.deadline + HANDOVER

    def _look(self, now: float) -> None:
        """End workers that hang; the others then see that a peer is lost."""
        alive = {self._rank(local): local for local in self.pids if local not in self.ended}
        # Once one is leaving, the others may merely wait for it.
        if self.deadline is not None or self.leaving.keys() & set(alive.values()):
            return
        signs = self.signs.look()
        verdict = self.hangs.judge({rank: signs[local] for rank, local in alive.items()}, now)
        if verdict is None:
            return
        if verdict.stalled:
            self.patience = LEFT
        else:
            write_stacks({rank: self.pids[local] for rank, local in alive.items()}, Path(self.job.folder))
        for rank, outcome in verdict.outcomes.items():
            local = alive[rank]
            self.hung[local] = outcome
            self.leaving[local] = now, -signal.SIGKILL
            with suppress(ProcessLookupError):
                os.kill(self.pids[local], signal.SIGKILL)

    def _forward(self) -> None:
        self.forwarded = self.stops.count
        if self.forwarded == 1:
            self.say("stopping: the step under way is finished and committed")
        elif self.forwarded == 2:
            self.say("the commit is under way; once more ends it at once, and the commit before it stays")
        else:
            self.patience = LEFT  # nothing is started after it, either
            self._kill()
            return
        self._signal(self.stops.last)

    def _kill(self) -> None:
        for rank in self.pids.keys() - self.ended.keys():
            self.sacrificed.add(rank)
            self.leaving.setdefault(rank, (time.monotonic(), -signal.SIGKILL))
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for rank, pid in self.pids.items():
            if rank not in self.ended:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)

    def _outcome(self) -> Outcome:
        """The first cause: the first end that is neither good nor the mere loss of a peer."""
        outcomes = [self._rank_outcome(rank) for rank in self.ended]
        # In the order of their ends: what comes later mostly follows from what came first.
        if self.forwarded >= 3:
            killed = "ended at once by a third signal"
            return Outcome(code=Exit.INTERNAL, cause=killed, hint="start again: the last commit is whole", where={})
        for unimportant in ((*_ENDS, Exit.PEER_UNAVAILABLE), _ENDS):
            for outcome in outcomes:
                if outcome.code not in unimportant:
                    return outcome
        return max(outcomes, key=lambda outcome: outcome.code)

    def _rank_outcome(self, rank: int) -> Outcome:
        """What a worker said last, or what its end says where it said nothing."""
        status, number = self.ended[rank], self._rank(rank)
        if rank in self.hung:
            return self.hung[rank]
        # Believed only with the status that it tells of: a worker may be killed after it has said it.
        if status >= 0:
            told = _told(self.signs.said(rank), Path(self.job.folder) / "logs" / f"outcome-{number}.json")
            if told and status == told["code"]:
                return Outcome.from_json(told)
        # The kernel's killer sends the same SIGKILL as anybody: its own count tells the two apart.
        if status == -signal.SIGKILL and oom_kills() > self.ooms:
            sign = self.signs.look()[rank]
            cause = f"rank {number} was ended by the kernel: out of memory"
            hint = "take a smaller batch.micro or model, or more memory: the same again would end the same"
            where = {"rank": number, "step": sign.step or None, "phase": sign.phase, "class": "oom"}
            return Outcome(code=Exit.INTERNAL, cause=cause, hint=hint, where=where)
        return _unsaid(status, number, self.signs.look()[rank])


def _told(word: bytes, file: Path) -> dict[str, Any] | None:
    """What a worker has said, in the memory that is shared with it, or else in its file."""
    try:
        return json.loads(word or within(ANSWER, file.read_bytes))
    except (OSError, ValueError):
        return None


def _serverless(status: int) -> Outcome:
    """What it comes to that the forkserver has ended."""
    if status < 0:
        where = {"signal": signal.Signals(-status).name}
        cause = f"the forkserver was ended by {where['signal']}, and the ranks with it"
        return Outcome(code=Exit.INTERNAL, cause=cause, hint="look for who sent it", where=where)
    hint = "look above for its traceback"
    return Outcome(code=Exit.INTERNAL, cause="the forkserver died", hint=hint, where={})


def _unsaid(status: int, rank: int, sign: HeartbeatSlot) -> Outcome:
    """What the status of a worker says that has left nothing; `sign` is its last sign of life."""
    where: dict[str, Any] = {"rank": rank, "step": sign.step or None, "phase": sign.phase}
    if status < 0:
        where["signal"] = signal.Signals(-status).name
        cause = f"rank {rank} was ended by {where['signal']}"
        hint = "look for who sent it; a fault in native code leaves a core where the kernel puts them"
        if -status in _DUMPS:
            where["core_pattern"] = core_pattern()
        return Outcome(code=Exit.INTERNAL, cause=cause, hint=hint, where=where)
    if status in _SAYING:
        cause = f"rank {rank} exited with {status} and could not write why"
        return Outcome(code=Exit(status), cause=cause, hint="look above for what it printed", where=where)
    cause = f"rank {rank} exited with {status} without saying why"
    return Outcome(code=Exit.INTERNAL, cause=cause, hint="look above for what it printed", where=where)


_SAYING = frozenset(int(code) for code in Exit) - {Exit.DONE, Exit.INTERNAL}
"""Exit codes that say something by themselves: nothing but this program ends with them."""
_DUMPS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class _listener:  # noqa: N801 - used as a statement
    """A socket for the rendezvous of several processes, bound to the loopback or to the first node's own address; None
    for a single process, and on the other nodes."""

    def __init__(self, node: Node, processes: int) -> None:
        self._address = node.host, node.port
        self._socket = None
        if processes > 1 and node.rank == 0:
            self._socket = socket.socket()

    def __enter__(self) -> socket.socket | None:
        if self._socket:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(self._address)
            self._socket.listen()
        return self._socket

    def __exit__(self, *_: object) -> None:
        if self._socket:
            self._socket.close()
